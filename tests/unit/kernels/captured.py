"""A runner whose launches are caught (`kernels.capture`), so that nothing is computed, and steps of all kinds."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from bench.gpu.random_model import RandomWeights, tiny
from kernels import device_batch
from kernels.device_batch import BatchRows, PreparedBatch, SequenceRows
from kernels.sampling import Drawn, DrawParams, LogitEdits
from kernels.token_draw import draw_tokens
from kernels.triton_ops import TritonOps
from tests.unit.engine.runner_conformance import batch_of, greedy
from worker.engine.batch import Batch, LogitBias, SampleParams
from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.graphs import EagerGraphs
from worker.engine.token_counts import TokenCounts
from worker.models.decoder import Decoder
from worker.models.device_linear import Fp8Linear, QuantizedLinear
from worker.models.layers import Linear, PlainLinear

BLOCKS = [1, 2, 3, 4]
CPU = torch.device("cpu")


def make_runner(
    pack: Callable[[Tensor], Linear] = PlainLinear,
    kv_dtype: torch.dtype = torch.bfloat16,
    device: torch.device = CPU,
) -> GraphRunner:
    weights = RandomWeights(tiny(), torch.bfloat16, CPU, pack=pack).make()
    sizes = Sizes(blocks_total=40, block_size=16, sequences_max=20, tokens_per_step=40)
    decoder = Decoder(tiny(), moved(weights, device), TritonOps())
    return GraphRunner(
        decoder, sizes, EagerGraphs(), kv_dtype=kv_dtype, draw=draw_nothing, preparation=PrepareNothing()
    )


def moved(value: Any, device: torch.device) -> Any:
    """The same, with all tensors in it there."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, list):
        return [moved(each, device) for each in value]
    if isinstance(value, (PlainLinear, QuantizedLinear, Fp8Linear)):
        there = copy.copy(value)
        there.weight, there.bias = moved(value.weight, device), moved(value.bias, device)
        return there
    if is_dataclass(value):
        return replace(value, **{name.name: moved(getattr(value, name.name), device) for name in fields(value)})
    return value


class PrepareNothing:
    """As the kernels would, were they run: the ids are whatever lay in memory."""

    patch_rows = staticmethod(device_batch.patch_rows)
    commit_batch = staticmethod(device_batch.commit_batch)

    def prepare_batch(self, rows: SequenceRows, batch: BatchRows, out: PreparedBatch, *, block_size: int) -> None:
        device_batch.prepare_batch(rows, batch, out, block_size=block_size)
        out.ids.zero_()


def draw_nothing(logits: Tensor, params: DrawParams, edits: LogitEdits | None) -> Drawn:
    """As the kernel would, were it run: its ids are whatever lay in memory."""
    drawn = draw_tokens(logits, params, edits)
    drawn.ids.zero_()
    return drawn


def sized(runner: GraphRunner, lengths: Iterable[int], rows_: Iterable[int]) -> Iterator[Batch]:
    """Prompts of these lengths, chunks, and decodes of these numbers of rows."""
    ids = list(range(2, 50))
    for length in lengths:
        yield batch_of(runner, [(ids[:length], 0, BLOCKS, greedy(length))])
    for rows in rows_:
        yield batch_of(runner, [(ids[: 20 + row], 19 + row, BLOCKS, greedy(20 + row)) for row in range(rows)])
        yield batch_of(runner, [(ids[:2], row % 2, BLOCKS, None if row % 3 else greedy(2)) for row in range(rows)])


def steps(runner: GraphRunner) -> Iterator[Batch]:
    """Of every size, and of every kind of sampling."""
    yield from sized(runner, range(1, 41), range(1, 21))
    yield from drawn(runner, (1, 2, 17))


def drawn(runner: GraphRunner, rows_: Iterable[int]) -> Iterator[Batch]:
    """Of every kind of sampling."""
    ids = list(range(2, 50))
    seen = TokenCounts([3, 4])
    seen.add([5])
    for options in (
        {"top_k": 3},
        {"min_p": 0.1},
        {"bias": LogitBias.of([(7, 1.0)])},
        {"banned": frozenset({8, 9})},
        {"seen": seen, "frequency_penalty": 0.5},
        {"logprobs": 0},
        {"logprobs": 5},
    ):
        for rows in rows_:
            sampled = SampleParams(temperature=0.7, top_p=0.9, seed=3, choice=1, position=1, **options)
            params = [greedy(1, **options), *[sampled] * (rows - 1)]
            yield batch_of(runner, [(ids[:1], 0, BLOCKS, each) for each in params])
