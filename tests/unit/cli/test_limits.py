"""Limits on the command line are whole numbers that the limiter can compute with, and nothing is rounded."""

import cyclopts
import pytest

from cli.tenant import app


def parsed(value: str) -> object:
    _, bound, _ = app.parse_args(["create", "example", "--rpm", value], exit_on_error=False, print_error=False)
    return bound.arguments["rpm"]


@pytest.mark.parametrize("value", ["0", "1", "10000000000"])
def test_whole_numbers_are_taken_as_they_are(value: str) -> None:
    assert parsed(value) == int(value)


@pytest.mark.parametrize("value", ["1.5", "-1", "1e3", "ten", "", "10000000001", "9223372036854775808", "nan"])
def test_anything_else_is_refused(value: str) -> None:
    with pytest.raises(cyclopts.CoercionError):
        parsed(value)
