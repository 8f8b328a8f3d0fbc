"""Tables for the terminal, in Markdown, so that a result can be pasted where it is discussed. Pure."""

import math
from collections.abc import Sequence

Cell = str | int | float | None

SIGNIFICANT_DIGITS = 3


def shown(cell: Cell) -> str:
    """As a person reads it: numbers with separators, fractions to three significant digits, nothing as a dash."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if not math.isfinite(cell) or not cell:
        return f"{cell:g}"
    digits = max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(abs(cell))))
    return f"{cell:,.{digits}f}"


def render(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Columns as wide as their widest cell; one of numbers alone is aligned to the right."""
    texts = [[shown(cell) for cell in row] for row in rows]
    assert all(len(row) == len(columns) for row in texts)
    widths = [max(len(column), *(len(row[i]) for row in texts), 3) for i, column in enumerate(columns)]
    right = [all(not isinstance(row[i], str) for row in rows) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return f"| {' | '.join(padded)} |"

    rule = ["-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)]
    return "\n".join([line(columns), line(rule), *map(line, texts)])
