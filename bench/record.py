"""Results in CSV files that only grow: a row's values never change.

A measurement may gain columns later; older rows then get empty cells. Invariant: a file has one header, and every
column that was ever recorded stays in it.
"""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.table import Cell

Row = Mapping[str, Cell]

RESULTS = Path(__file__).parent / "results"
SIGNIFICANT_DIGITS = 6


def append(path: Path, rows: Sequence[Row]) -> None:
    """Write the rows to the end of the file, which is made when it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns, old = _read(path)
    wanted = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    if wanted != columns:
        fresh = path.with_suffix(".new")
        with fresh.open("w", newline="") as file:
            writer = csv.DictWriter(file, wanted, lineterminator="\n")
            writer.writeheader()
            writer.writerows(old)
        fresh.replace(path)
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, wanted, lineterminator="\n")
        writer.writerows({name: _written(cell) for name, cell in row.items()} for row in rows)


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    if not path.exists():
        return [], []
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        return list(reader.fieldnames or ()), rows


def _written(cell: Cell) -> str:
    if isinstance(cell, float):
        return f"{cell:.{SIGNIFICANT_DIGITS}g}"
    return "" if cell is None else str(cell)
