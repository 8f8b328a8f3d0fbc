"""No number on the command line is rounded, and no name in a table is obeyed by the terminal."""

from collections.abc import Iterator
from typing import get_args

import cyclopts
import msgspec
import pytest

from cli import main, table
from cli.whole_numbers import MAGNITUDE_MAX, number


def options(app: cyclopts.App, path: str = "forebay") -> Iterator[tuple[str, cyclopts.Argument]]:
    """Every parameter of every command below `app`."""
    for name in (name for name in app if not name.startswith("-")):
        command = app[name]
        if command.default_command is not None:
            for argument in command.assemble_argument_collection():
                yield f"{path} {name} {argument.name}", argument
        yield from options(command, f"{path} {name}")


def test_every_whole_number_is_taken_as_it_is_written() -> None:
    numbers = {where: found for where, found in options(main.app) if int in (found.hint, *get_args(found.hint))}
    assert "forebay usage adjust --micro" in numbers
    for where, argument in numbers.items():
        assert argument.parameter.converter is not None, where


@pytest.mark.parametrize(
    "text", ["1.5", "1e3", "", "10", "-1", "+1", "0x1", "1_0", "\N{ARABIC-INDIC DIGIT THREE}", "1\n"]
)
def test_what_is_no_number_within_the_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a whole number from 0 to 9 is wanted"):
        number(text, 0, 9)


def test_a_number_without_bounds_is_asked_for_without_them() -> None:
    with pytest.raises(ValueError, match="a whole number of at most 15 digits is wanted, not abc"):
        number("abc", -MAGNITUDE_MAX, MAGNITUDE_MAX)


class Named(msgspec.Struct):
    name: str


def test_a_name_is_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["[/red]", "[bold]b", ":smile:", "\x1b[2J", "a\nb", "\N{RIGHT-TO-LEFT OVERRIDE}c", "Größe"]
    table.show_rows([Named(name) for name in names], ["name"], lambda row: (row.name,), json=False)
    shown = capsys.readouterr().out
    for words in ("[/red]", "[bold]b", ":smile:", r"\x1b[2J", r"a\nb", r"\u202ec", "Größe"):
        assert words in shown
