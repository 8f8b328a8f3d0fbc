"""The table of everything compiled, as a document keeps it: a line for each kernel of a launch, chips side by side.

Owns the lines between two marks of a Markdown file. Knows no kernel and no compiler.
Invariant: nothing outside the marks changes, and what is written can be read again.
"""

from collections.abc import Iterable
from pathlib import Path

from kernels.usage import Usage

BEGIN = "<!-- compiled: begin, written by `python -m kernels.compile --document` -->"
END = "<!-- compiled: end -->"


def write_table(document: Path, usages: Iterable[Usage]) -> None:
    before, _, rest = document.read_text().partition(BEGIN)
    _, mark, after = rest.partition(END)
    assert mark, f"{document} has no table to replace"
    document.write_text(f"{before}{BEGIN}\n\n{_table(list(usages))}\n\n{END}{after}")


def launches_in(document: Path) -> list[str]:
    """The launches that the table names, each as often as it has kernels."""
    table = document.read_text().partition(BEGIN)[2].partition(END)[0]
    return [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")][1:]


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
