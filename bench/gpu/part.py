"""What a part of the check is made of, and what it gives back: plain values, fit for JSON."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from bench.table import Cell

Row = dict[str, Cell]


class Case(NamedTuple):
    kernel: str
    dtype: torch.dtype
    shape: str
    run: Callable[[], tuple[Tensor, Tensor]]  # what the kernel gave, and what is right
    error_max: float | None = None  # None: that of the type; 0: bit by bit


class Job(NamedTuple):
    kernel: str
    shape: str
    run: Callable[[], object]
    torch_run: Callable[[], object]  # the same work by torch alone
    bytes_moved: int
    flops: int = 0


@dataclass(frozen=True)
class Level:
    """So many sequences at once, each of so many tokens."""

    sequences: int
    prompt: int
    output: int


def told(row: Row) -> Row:
    """The row, which the log has from now on, whatever becomes of the part."""
    print(json.dumps(row), flush=True)
    return row


@dataclass
class Found:
    rows: list[Row]  # everything
    faults: list[str]  # what is wrong, one line each
    columns: list[str] = field(default_factory=list[str])  # of the short table
    table: list[list[Cell]] = field(default_factory=list[list[Cell]])
