"""The table of compiled kernels in a Markdown document: one line per kernel of a launch, one group of columns per chip.

Owns the lines between two marks of a Markdown file. Knows no kernel and no compiler.
Invariant: nothing outside the marks changes, and what is written can be read again.
"""

from collections.abc import Iterable
from pathlib import Path

from kernels.usage import Usage

BEGIN = "<!-- compiled: begin, written by `python -m kernels.compile --document` -->"
END = "<!-- compiled: end -->"


class NoTable(Exception):
    """The document cannot be read, or lacks the two marks. The message is one sentence."""


def check(document: Path) -> None:
    """Raises NoTable unless the document has a table to replace."""
    _around_table(document)


def write_table(document: Path, usages: Iterable[Usage]) -> None:
    """Replace the document's table. Raises NoTable."""
    before, after = _around_table(document)
    document.write_text(f"{before}{BEGIN}\n\n{_table(list(usages))}\n\n{END}{after}")


def launches_in(document: Path) -> list[str]:
    """The launches that the table names, each as often as it has kernels."""
    table = document.read_text().partition(BEGIN)[2].partition(END)[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]


def _around_table(document: Path) -> tuple[str, str]:
    try:
        text = document.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NoTable(f"{document} cannot be read: {error}") from error
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise NoTable(f"{document} has no table to replace: the marks that begin and end it are missing")
    return before, after


def _table(usages: list[Usage]) -> str:
    chips = sorted({usage.architecture for usage in usages})
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for usage in usages:
        cell = f"{usage.registers} | {usage.spilled_bytes} | {usage.shared_bytes / 1024:.1f}"
        lines.setdefault((usage.launch, usage.kernel), {})[usage.architecture] = cell
    titles = " | ".join(f"{chip}: registers | bytes spilled | KiB shared" for chip in chips)
    rule = "--:|" * 3 * len(chips)
    rows = (
        f"| {launch} | `{kernel.strip('_')}` | {' | '.join(cells.get(chip, ' |  | ') for chip in chips)} |"
        for (launch, kernel), cells in lines.items()
    )
    return "\n".join((f"| launch | kernel | {titles} |", f"|---|---|{rule}", *rows))
