"""Drives the engine step by step and takes the times that `bench.engine` reports.

All sequences of a level start together, run to the last token, and share every step.
"""

import random
import time
from pathlib import Path

import torch

from bench.percentiles import spread
from bench.record import Row
from kernels.cpu import CpuOps
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.torch_runner import TorchRunner, kv_blocks
from worker.models.card import demo_model_path
from worker.models.load import DtypeName, load_model
from worker.models.packer import WeightsMode

PROMPT_TOKENS = 200
OUTPUT_TOKENS, OUTPUT_TOKENS_QUICK = 128, 16
PREFILL_TOKENS = 1_024
PREFILL_ROUNDS, PREFILL_ROUNDS_QUICK = 5, 1
BLOCK_SIZE = 16
KV_BYTES = 1024**3


class Steps:
    """An engine with a loaded model, warm."""

    def __init__(self, path: Path | None, dtype: DtypeName, weights: WeightsMode, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self.threads = threads
        start = time.perf_counter()
        model = load_model(path or demo_model_path(), dtype, weights=weights)
        self.load_s = time.perf_counter() - start
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.model_name = model.card.name
        self._vocab_size = model.config.vocab_size
        self._context_length = model.config.context_length
        blocks = kv_blocks(KV_BYTES, model.config, block_size=BLOCK_SIZE, device=model.device, model_dtype=model.dtype)
        runner = TorchRunner(model, CpuOps(), blocks_total=blocks, block_size=BLOCK_SIZE)
        config = EngineConfig(block_size=BLOCK_SIZE, context_length=self._context_length)
        self._engine = Engine(runner, model.card.vocabulary, config)
        self._finish(["warm"], prompt_tokens=PROMPT_TOKENS, output_tokens=4)  # the first steps build primitives

    def decode(self, sequences: int, *, quick: bool) -> Row:
        """Output tokens/s from the first prompt on, and those of the steps in which all sequences decode."""
        output_tokens = OUTPUT_TOKENS_QUICK if quick else OUTPUT_TOKENS
        names = [f"{sequences}/{n}" for n in range(sequences)]
        start = time.perf_counter()
        steps_s = self._finish(names, prompt_tokens=PROMPT_TOKENS, output_tokens=output_tokens)
        total_s = time.perf_counter() - start
        steps = spread(steps_s)
        assert steps is not None
        return {
            "concurrency": sequences,
            "prompt_tokens": PROMPT_TOKENS,
            "output_tokens": output_tokens,
            "output_tokens_per_s": sequences * output_tokens / total_s,
            "decode_tokens_per_s": sequences * len(steps_s) / sum(steps_s),
            "step_p50_ms": steps.p50 * 1_000,
            "step_p95_ms": steps.p95 * 1_000,
            "step_p99_ms": steps.p99 * 1_000,
        }

    def prefill(self, *, quick: bool) -> float:
        """Prompt tokens/s of one long prompt at a time, the median round."""
        tokens = min(PREFILL_TOKENS, self._context_length - 1)
        times: list[float] = []
        for n in range(PREFILL_ROUNDS_QUICK if quick else PREFILL_ROUNDS):
            start = time.perf_counter()
            self._finish([f"prefill/{n}"], prompt_tokens=tokens, output_tokens=1)
            times.append(time.perf_counter() - start)
        return tokens / sorted(times)[len(times) // 2]

    def _finish(self, names: list[str], *, prompt_tokens: int, output_tokens: int) -> list[float]:
        """Run one request for each name to its end. Returns the seconds of each step in which all of them decoded."""
        for name in names:
            self._add(name, prompt_tokens, output_tokens)
        steps_s: list[float] = []
        while self._engine.has_work:
            before = time.perf_counter()
            step = self._engine.step()
            if step.failure is not None:
                raise step.failure
            if step.tokens == step.sequences == len(names):
                steps_s.append(time.perf_counter() - before)
        return steps_s

    def _add(self, name: str, prompt_tokens: int, output_tokens: int) -> None:
        prompt = random.Random(name).choices(range(100, self._vocab_size), k=prompt_tokens)
        sampling = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        self._engine.add(
            EngineRequest(id=name, prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant="bench", salt=b"")
        )
