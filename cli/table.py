"""Tables whose text can be copied whole: cells wrap instead of being cut, and in a pipe the lines are wide."""

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 240

R = TypeVar("R", bound=msgspec.Struct)


def show_rows(rows: Sequence[R], columns: Sequence[str], cells: Callable[[R], Iterable[str]], *, json: bool) -> None:
    """Print rows as a table of `cells` or, with `json`, each whole row as one JSON object per line."""
    if json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    made = of(*columns)
    for row in rows:
        made.add_row(*map(_plain, cells(row)))
    show(made)


def of(*columns: str) -> Table:
    made = Table()
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(made: Table) -> None:
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH, markup=False, emoji=False).print(made)


def _plain(text: str) -> str:
    """A name is displayed and never interpreted: control characters and direction marks are written as escapes."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
