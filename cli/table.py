"""Tables whose every character can be copied: cells fold instead of being cut, and lines are long when piped."""

import sys

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 240


def of(*columns: str) -> Table:
    made = Table()
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def show(made: Table) -> None:
    Console(width=None if sys.stdout.isatty() else PIPED_WIDTH).print(made)
