"""Measures what sampling adds to a step, in milliseconds, by the requests' options. Records nothing."""

import os

from bench import machine
from bench.table import Cell, render
from worker.models.threads import prepare

ROWS = (1, 16, 256)


def run(*, quick: bool = False) -> None:
    """Measure and print.

    Parameters
    ----------
    quick
        Fewer repeats.
    """
    prepare(os.environ, os.cpu_count() or 1)
    from bench.sampling_cases import CASES, VOCAB, cost_ms  # noqa: PLC0415 - imports torch, after the line above

    table: list[list[Cell]] = [[case.name, *(cost_ms(case, n, 3 if quick else 9) for n in ROWS)] for case in CASES]
    print(f"Sampling, {VOCAB} logits a row; {machine.described(machine.provenance())}")
    print(render(["asked for", *(f"{rows} rows, ms" for rows in ROWS)], table))
