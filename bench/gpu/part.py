"""What a part of the check gives back. Plain values, fit for JSON."""

from dataclasses import dataclass, field

from bench.table import Cell

Row = dict[str, Cell]


@dataclass(frozen=True)
class Level:
    """So many sequences at once, each of so many tokens."""

    sequences: int
    prompt: int
    output: int


@dataclass
class Found:
    rows: list[Row]  # everything
    faults: list[str]  # what is wrong, one line each
    columns: list[str] = field(default_factory=list[str])  # of the short table
    table: list[list[Cell]] = field(default_factory=list[list[Cell]])
