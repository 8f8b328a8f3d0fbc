"""The pieces of a part of the check, and its result: plain values, fit for JSON."""

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
    run: Callable[[], tuple[Tensor, Tensor]]  # the kernel's result, and the expected one
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
    """A number of sequences that run at one time, and the tokens of each."""

    sequences: int
    prompt: int
    output: int


def logged(row: Row) -> Row:
    """The row, after printing it to the log, so that it is known even if the part does not finish."""
    print(json.dumps(row), flush=True)
    return row


@dataclass
class Found:
    rows: list[Row]  # all results
    faults: list[str]  # failures, one line each
    columns: list[str] = field(default_factory=list[str])  # of the short table
    table: list[list[Cell]] = field(default_factory=list[list[Cell]])
