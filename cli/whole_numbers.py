"""Whole numbers on the command line. Cyclopts itself would round 1.5 to 2."""

import re
from collections.abc import Sequence
from typing import Annotated

import cyclopts

MAGNITUDE_MAX = 10**15  # the bound of a number that has none of its own


def number(text: str, least: int, most: int) -> int:
    """Raises ValueError."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) or not least <= int(text) <= most:
        bounds = "of at most 15 digits" if most - least == 2 * MAGNITUDE_MAX else f"from {least} to {most}"
        raise ValueError(f"a whole number {bounds} is wanted, not {text}")
    return int(text)


def whole(least: int = -MAGNITUDE_MAX, most: int = MAGNITUDE_MAX) -> cyclopts.Parameter:
    """An option's value must be written as a whole number within the bounds."""

    def convert(_: object, tokens: Sequence[cyclopts.Token]) -> int:
        return number(tokens[0].value, least, most)

    return cyclopts.Parameter(converter=convert)


Count = Annotated[int | None, whole()]
"""The value of a setting, which has its own bounds."""
