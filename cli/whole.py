"""Whole numbers on the command line. Cyclopts itself rounds 1.5 to 2, which nobody asked for."""

import re
from collections.abc import Sequence
from typing import Annotated

import cyclopts

MAGNITUDE_MAX = 10**15  # of a number without bounds of its own


def number(text: str, least: int, most: int) -> int:
    """Raises ValueError."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text, re.ASCII) or not least <= int(text) <= most:
        bounds = "of at most 15 digits" if most - least == 2 * MAGNITUDE_MAX else f"from {least} to {most}"
        raise ValueError(f"a whole number {bounds} is wanted, not {text}")
    return int(text)


def whole(least: int = -MAGNITUDE_MAX, most: int = MAGNITUDE_MAX) -> cyclopts.Parameter:
    """What is annotated with it is taken as it is written or refused."""

    def convert(_: object, tokens: Sequence[cyclopts.Token]) -> int:
        return number(tokens[0].value, least, most)

    return cyclopts.Parameter(converter=convert)


Count = Annotated[int | None, whole()]
"""Of a setting, which knows its own bounds."""
