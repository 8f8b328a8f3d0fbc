"""Measures what each way of storing weights and of rounding activations gains in tokens/s and loses in quality.

Tokens/s are those of the engine in process. The texts are the golden prompts and their continuations, each fed once in
each mode.

At every position of a continuation, the mode's most likely token and its log-probability of the golden token are
compared with those of float32 weights. Invariant: every mode gets the same tokens, so one difference does not cause the
next.
"""

import json
import os
from pathlib import Path
from typing import Literal

from bench import machine
from bench.record import RESULTS, Row, append
from bench.table import Cell, render
from worker.models.threads import prepare

FILE = "quality.csv"
GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "smollm2_golden.json"
Mode = tuple[Literal["auto", "fp32", "bf16", "int8", "int4"], Literal["auto", "fp32"]]  # weights, dtype
REFERENCE: Mode = ("fp32", "fp32")
MODES: tuple[Mode, ...] = (
    ("auto", "auto"),
    ("auto", "fp32"),
    REFERENCE,
    ("bf16", "fp32"),
    ("int8", "fp32"),
    ("int4", "fp32"),
    ("int4", "auto"),
)


SEQUENCES = 1, 16


def run() -> None:
    """Measure, print, record."""
    threads = os.cpu_count() or 1
    prepare(os.environ, threads)
    from bench.engine_steps import Steps  # noqa: PLC0415 - imports torch, after the line above
    from bench.forced import Answers, read  # noqa: PLC0415

    texts = [(case["prompt_ids"], case["output_ids"]) for case in json.loads(GOLDEN.read_text())["cases"]]
    wanted: Answers = read(texts, *REFERENCE)
    before: dict[str, Cell] = machine.provenance()
    rows: list[Row] = []
    for weights, dtype in MODES:
        found, steps = read(texts, weights, dtype), Steps(None, dtype, weights, threads=threads)
        rows.append(
            {
                "weights": weights,
                "dtype": dtype,
                **{f"decode_tokens_per_s_{n}": steps.decode(n, quick=True)["decode_tokens_per_s"] for n in SEQUENCES},
                "prefill_tokens_per_s": steps.prefill(quick=True),
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
