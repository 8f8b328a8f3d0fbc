"""The engine with the real model, in process: output tokens/s and step times at rising concurrency, prefill speed.

No gateway, no NATS: what remains to `bench.stack`'s numbers is their cost. All sequences of a level start together, go
on to the last token, and share every step.
"""

import os
import random
import resource
import time
from pathlib import Path
from typing import Literal

import torch

from bench import machine
from bench.percentiles import Spread, spread
from bench.record import RESULTS, Row, append
from bench.table import Cell, render
from kernels.cpu import CpuOps
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.torch_runner import TorchRunner, kv_blocks
from worker.models.card import demo_model_path
from worker.models.load import LoadedModel, load_model

PROMPT_TOKENS = 200
OUTPUT_TOKENS, OUTPUT_TOKENS_QUICK = 128, 16
PREFILL_TOKENS = 1_024
PREFILL_ROUNDS, PREFILL_ROUNDS_QUICK = 5, 1
BLOCK_SIZE = 16
KV_BYTES = 1024**3
FILE = "engine.csv"


def run(
    *,
    quick: bool = False,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
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
        What is multiplied in.
    concurrency
        How many sequences, one level after the other.
    threads
        That compute; without a number, one per core.
    model
        A GGUF file; without one, the demo model.
    """
    before: dict[str, Cell] = machine.provenance()
    torch.set_num_threads(threads or os.cpu_count() or 1)
    start = time.perf_counter()
    loaded = load_model(model or demo_model_path(), dtype)
    before |= {"dtype": str(loaded.dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    load_s = time.perf_counter() - start
    engine = _engine(loaded)
    _decode(engine, loaded.config.vocab_size, sequences=1, output_tokens=4)  # the first steps build primitives
    output_tokens = OUTPUT_TOKENS_QUICK if quick else OUTPUT_TOKENS
    rows = [_decode(engine, loaded.config.vocab_size, sequences=n, output_tokens=output_tokens) for n in concurrency]
    whole: dict[str, Cell] = {
        "prefill_tokens_per_s": _prefill(engine, loaded, rounds=PREFILL_ROUNDS_QUICK if quick else PREFILL_ROUNDS),
        "load_s": load_s,
        "resident_max_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(_text(loaded.card.name, before, rows, whole))
    append(RESULTS / FILE, [{**before, "model": loaded.card.name, **row, **whole} for row in rows])


def _engine(model: LoadedModel) -> Engine:
    blocks = kv_blocks(KV_BYTES, model.config, block_size=BLOCK_SIZE, device=model.device, model_dtype=model.dtype)
    runner = TorchRunner(model, CpuOps(), blocks_total=blocks, block_size=BLOCK_SIZE)
    return Engine(
        runner,
        model.card.vocabulary,
        EngineConfig(block_size=BLOCK_SIZE, context_length=model.config.context_length),
    )


def _add(engine: Engine, name: str, vocab_size: int, *, prompt_tokens: int, output_tokens: int) -> None:
    prompt = random.Random(name).choices(range(100, vocab_size), k=prompt_tokens)
    sampling = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
    engine.add(EngineRequest(id=name, prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant="bench", salt=b""))


def _decode(engine: Engine, vocab_size: int, *, sequences: int, output_tokens: int) -> Row:
    """All prompts at once, then steps of one token for each sequence. `decode` counts those steps alone."""
    for n in range(sequences):
        name = f"{sequences}/{n}"
        _add(engine, name, vocab_size, prompt_tokens=PROMPT_TOKENS, output_tokens=output_tokens)
    decode_s: list[float] = []
    start = time.perf_counter()
    while engine.has_work:
        before = time.perf_counter()
        step = engine.step()
        if step.failure is not None:
            raise step.failure
        if step.tokens == step.sequences == sequences:
            decode_s.append(time.perf_counter() - before)
    total_s = time.perf_counter() - start
    return {
        "concurrency": sequences,
        "prompt_tokens": PROMPT_TOKENS,
        "output_tokens": output_tokens,
        "output_tokens_per_s": sequences * output_tokens / total_s,
        "decode_tokens_per_s": sequences * len(decode_s) / sum(decode_s),
        **_step_ms(spread(decode_s)),
    }


def _step_ms(steps: Spread | None) -> Row:
    scaled = None if steps is None else steps.scaled(1_000)
    return {f"step_{part}_ms": getattr(scaled, part, None) for part in ("p50", "p95", "p99")}


def _prefill(engine: Engine, model: LoadedModel, *, rounds: int) -> float:
    """Prompt tokens/s of one long prompt at a time, the median round."""
    tokens = min(PREFILL_TOKENS, model.config.context_length - 1)
    times: list[float] = []
    for n in range(rounds):
        _add(engine, f"prefill/{n}", model.config.vocab_size, prompt_tokens=tokens, output_tokens=1)
        start = time.perf_counter()
        while engine.has_work:
            engine.step()
        times.append(time.perf_counter() - start)
    return tokens / sorted(times)[len(times) // 2]


def _text(name: str, before: Row, rows: list[Row], whole: Row) -> str:
    columns = ["sequences", "tokens/s", "decode tokens/s", "step ms p50", "p95", "p99"]
    shown = ("concurrency", "output_tokens_per_s", "decode_tokens_per_s", "step_p50_ms", "step_p95_ms", "step_p99_ms")
    title = (
        f"Engine: {name}, {before['dtype']}, {before['threads']} threads, prompts of {PROMPT_TOKENS} tokens; "
        f"{machine.described(before)}"
    )
    table = render(columns, [[row[column] for column in shown] for row in rows])
    return f"\n{title}\n\n{table}\n\n{render(list(whole), [list(whole.values())])}"
