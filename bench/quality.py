"""Measures what each way to keep weights costs in quality, over the golden prompts and their continuations.

At every position of a continuation the mode's likeliest token and its log-probability of the golden token are compared
with those of float32 weights. Invariant: every mode reads the same tokens, so one difference does not cause the next.
"""

import json
import os
from pathlib import Path

from bench import machine
from bench.record import RESULTS, Row, append
from bench.table import Cell, render
from worker.models.threads import prepare

FILE = "quality.csv"
GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2_golden.json"
REFERENCE = "fp32"
MODES = ("auto", "bf16", "int8", "int4")


def run() -> None:
    """Measure, print, record."""
    prepare(os.environ, os.cpu_count() or 1)
    from bench.forced import Answers, read  # noqa: PLC0415 - imports torch, after the line above

    texts = [(case["prompt_ids"], case["output_ids"]) for case in json.loads(GOLDEN.read_text())["cases"]]
    wanted: Answers = read(texts, REFERENCE)
    before: dict[str, Cell] = machine.provenance()
    rows: list[Row] = []
    for mode in MODES:
        found = read(texts, mode)
        rows.append(
            {
                "weights": mode,
                "weights_mib": found.weights_mib,
                "positions": len(found.ids),
                "same_token": sum(a == b for a, b in zip(found.ids, wanted.ids, strict=True)) / len(found.ids),
                "mean_logprob_difference": sum(abs(a - b) for a, b in zip(found.logprobs, wanted.logprobs, strict=True))
                / len(found.ids),
            }
        )
    title = (
        f"Quality against float32 weights ({wanted.weights_mib:.0f} MiB), golden prompts; {machine.described(before)}"
    )
    print(f"\n{title}\n\n{render(list(rows[0]), [list(row.values()) for row in rows])}")
    append(RESULTS / FILE, [{**before, **row} for row in rows])
