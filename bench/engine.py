"""The engine with the real model, in process: output tokens/s and step times at rising concurrency, prefill speed.

Without gateway and NATS: the difference to `bench.stack`'s numbers is their cost.
"""

import os
import resource
from pathlib import Path
from typing import Literal

from bench import machine
from bench.record import RESULTS, Row, append
from bench.table import Cell, render
from worker.models.threads import prepare

FILE = "engine.csv"


def run(
    *,
    quick: bool = False,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    weights: Literal["auto", "fp32", "bf16", "int8", "int4"] = "auto",
    concurrency: tuple[int, ...] = (1, 4, 16, 32),
    threads: int | None = None,
    model: Path | None = None,
) -> None:
    """Measure, print, record.

    Parameters
    ----------
    quick
        16 output tokens instead of 128.
    dtype
        The type of activations.
    weights
        How weights are kept.
    concurrency
        How many sequences, one level after the other.
    threads
        That compute; without a number, one per core.
    model
        A GGUF file; without one, the demo model.
    """
    before: dict[str, Cell] = machine.provenance()
    count = threads or os.cpu_count() or 1
    prepare(os.environ, count)
    from bench.engine_steps import PROMPT_TOKENS, Steps  # noqa: PLC0415 - imports torch, after the line above

    steps = Steps(model, dtype, weights, threads=count)
    before |= {"dtype": steps.dtype, "weights": weights, "threads": steps.threads, "model": steps.model_name}
    rows = [steps.decode(n, quick=quick) for n in concurrency]
    whole: dict[str, Cell] = {
        "prefill_tokens_per_s": steps.prefill(quick=quick),
        "load_s": steps.load_s,
        "resident_max_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    title = (
        f"Engine: {steps.model_name}, {steps.dtype}, weights {weights}, {steps.threads} threads, "
        f"prompts of {PROMPT_TOKENS} tokens; "
        f"{machine.described(before)}"
    )
    print(_text(title, rows, whole))
    append(RESULTS / FILE, [{**before, **row, **whole} for row in rows])


def _text(title: str, rows: list[Row], whole: Row) -> str:
    columns = ["sequences", "tokens/s", "decode tokens/s", "step ms p50", "p95", "p99"]
    shown = ("concurrency", "output_tokens_per_s", "decode_tokens_per_s", "step_p50_ms", "step_p95_ms", "step_p99_ms")
    table = render(columns, [[row[column] for column in shown] for row in rows])
    return f"\n{title}\n\n{table}\n\n{render(list(whole), [list(whole.values())])}"
