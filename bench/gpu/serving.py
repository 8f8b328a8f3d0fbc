"""Part c: the engine with random weights, from one sequence to hundreds, with recorded graphs and without.

Knows how to drive an engine and what to time. Invariant: all sequences of a level start together and share every step
that is counted.
"""

import random
import statistics
import time
from dataclasses import dataclass

import torch

from bench.gpu.machine import Machine
from bench.gpu.part import Found, Level, Row, logged
from bench.gpu.random_model import RandomWeights, llama_8b, tiny, vocabulary
from kernels.compilations import Compilations
from kernels.triton_ops import TritonOps
from worker.engine.batch import Batch, Sampled
from worker.engine.config import EngineConfig
from worker.engine.device_memory import GIB
from worker.engine.engine import Engine
from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.graphs import CudaGraphs, EagerGraphs, Graphs
from worker.engine.kv_pool import token_bytes
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.runner import PendingStep
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder

BLOCK_SIZE = 16
HALF_OUTPUT = 500  # the mean context of 1,000 in and 1,000 out is 1,500
INPUT, OUTPUT = 1_000, 1_000


def run(machine: Machine) -> Found:
    levels = (
        [Level(1, 3, 3), Level(2, 3, 3)]
        if machine.dry
        else [Level(1, 128, 128), Level(64, INPUT + HALF_OUTPUT - 32, 64), Level(256, INPUT + HALF_OUTPUT - 16, 32)]
    )
    config = tiny() if machine.dry else llama_8b()
    dtype = torch.float32 if machine.dry else torch.bfloat16
    decoder = Decoder(config, RandomWeights(config, dtype, machine.device).make(), TritonOps())
    compilations = Compilations()
    compilations.watch()
    rows: list[Row] = []
    faults: list[str] = []
    for graphs in (True,) if machine.dry else (True, False):  # a CPU records none
        driven = Driven(machine, decoder, dtype, levels[-1], graphs=graphs)
        late: list[str] = []
        compilations.ready(late.append)
        rows += [driven.level(level) for level in (levels if graphs else levels[:1])]
        faults += [f"{kernel} was compiled after the warm-up" for kernel in late]
        driven.close()
    shown = (
        "graphs",
        "sequences",
        "decode_tokens_per_s",
        "of_bandwidth",
        "host_ms",
        "waited_ms",
        "tokens_per_s_1000_1000",
    )
    columns = ["graphs", "sequences", "decode tokens/s", "of bandwidth", "host ms", "waited ms", "1,000/1,000 tokens/s"]
    return Found(rows, faults, columns, [[row[name] for name in shown] for row in rows])


class Driven:
    """A warm engine, on a runner whose time is measured."""

    def __init__(
        self,
        machine: Machine,
        decoder: Decoder,
        dtype: torch.dtype,
        largest: Level,
        *,
        graphs: bool,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self._machine = machine
        self._config: ModelConfig = decoder.config
        self._graphs = graphs
        tokens = largest.prompt + largest.output
        sequences_max = largest.sequences if graphs else 1
        sizes = Sizes(
            blocks_total=1 + sequences_max * (-(-tokens // BLOCK_SIZE) + 1),
            block_size=BLOCK_SIZE,
            sequences_max=sequences_max,
            tokens_per_step=4 if machine.dry else 8_192,
        )
        recorded: Graphs = CudaGraphs() if graphs and not machine.dry else EagerGraphs()
        start = time.perf_counter()
        self._inner = GraphRunner(decoder, sizes, recorded, kv_dtype=kv_dtype or dtype)
        self._inner.warm_up()
        self._warm_up_s = time.perf_counter() - start
        self._weights_bytes = decoder.weights.nbytes
        # Of the embedding a step reads only a few rows.
        self._bytes_read = self._weights_bytes - decoder.weights.embedding.nbytes
        self._kv_token_bytes = token_bytes(self._config, kv_dtype or dtype)
        self._runner = _Timed(self._inner)
        options = EngineConfig(
            block_size=BLOCK_SIZE,
            context_length=self._config.context_length,
            tokens_per_step=sizes.tokens_per_step,
            tokens_beside_decodes=sizes.tokens_per_step,
            sequences_max=sequences_max,
            watermark=0.0,
        )
        self._engine = Engine(self._runner, vocabulary(self._config), options)

    def level(self, level: Level) -> Row:
        for number in range(level.sequences):
            self._add(f"{level.sequences}/{number}", level)
        start = time.perf_counter()
        prefill_s, steps = self._finish(level)
        step_s = statistics.median(took for took, _ in steps)
        waited_s = statistics.median(waited for _, waited in steps)
        context = level.prompt + level.output / 2
        least_bytes = self._bytes_read + level.sequences * context * self._kv_token_bytes
        whole_s = prefill_s * INPUT / level.prompt + OUTPUT * step_s
        row: Row = {
            "graphs": "on" if self._graphs else "off",
            "sequences": level.sequences,
            "prompt": level.prompt,
            "output": level.output,
            "weights_gib": self._weights_bytes / GIB,
            "kv_token_bytes": self._kv_token_bytes,
            "warm_up_s": self._warm_up_s,
            "total_s": time.perf_counter() - start,
            "prefill_tokens_per_s": level.sequences * level.prompt / prefill_s,
            "step_ms": step_s * 1e3,
            "decode_tokens_per_s": level.sequences / step_s,
            "of_bandwidth": least_bytes / step_s / self._machine.copy_bytes_per_s,
            "host_ms": (step_s - waited_s) * 1e3,
            "waited_ms": waited_s * 1e3,
            # Extrapolated from the parts that were run: all prompts, then 1,000 steps at the mean context.
            "tokens_per_s_1000_1000": level.sequences * OUTPUT / whole_s if level.sequences > 1 else None,
        }
        return logged(row)

    def close(self) -> None:
        self._inner.close()

    def _add(self, name: str, level: Level) -> None:
        prompt = random.Random(name).choices(range(1, self._config.vocab_size), k=level.prompt)
        sampling = SamplingParams(max_tokens=level.output, temperature=0.0, ignore_eos=True)
        self._engine.add(
            EngineRequest(
                id=name, prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant="check", salt=name.encode()
            )
        )

    def _finish(self, level: Level) -> tuple[float, list[tuple[float, float]]]:
        """Seconds until the last prompt was computed; and of each step in which all decode, and waited in it."""
        steps: list[tuple[float, float]] = []
        start = time.perf_counter()
        prefill_s = 0.0
        while self._engine.has_work:
            before, waited_before = time.perf_counter(), self._runner.waited_s
            step = self._engine.step()
            if step.failure is not None:
                raise step.failure
            took = time.perf_counter() - before
            if step.tokens == step.sequences == level.sequences:
                prefill_s = prefill_s or before - start
                steps.append((took, self._runner.waited_s - waited_before))
        # The first ones still wait for prompts that were launched before them.
        return prefill_s, steps[2:] or steps


class _Timed:
    """A runner that measures how long its results were awaited."""

    def __init__(self, inner: GraphRunner) -> None:
        self._inner = inner
        self.vocab_size = inner.vocab_size
        self.block_size = inner.block_size
        self.blocks_total = inner.blocks_total
        self.context_length = inner.context_length
        self.steps_ahead = inner.steps_ahead
        self.waited_s = 0.0

    def submit(self, batch: Batch) -> PendingStep:
        return _TimedStep(self, self._inner.submit(batch))

    def close(self) -> None:
        self._inner.close()


@dataclass
class _TimedStep:
    runner: _Timed
    step: PendingStep

    def result(self) -> Sampled:
        start = time.perf_counter()
        sampled = self.step.result()
        self.runner.waited_s += time.perf_counter() - start
        return sampled
