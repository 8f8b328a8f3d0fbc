"""After its warm-up a runner asks triton for no kernel that it has not asked for before, whatever the step.

No device is needed: launches are caught before triton compiles (`kernels.capture`), so nothing is computed either.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest
import structlog
import torch
from torch import Tensor

from bench.gpu.random_model import RandomWeights, tiny
from kernels.capture import Capture, capture
from kernels.compilations import Compilations
from kernels.rms_norm import rms_norm
from kernels.sampling import Drawn, DrawParams, LogitEdits
from kernels.token_draw import draw_tokens
from kernels.triton_ops import TritonOps
from tests.unit.engine.runner_conformance import batch_of, greedy
from worker.cuda import tell_late
from worker.engine.batch import LogitBias, SampleParams
from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.graphs import EagerGraphs
from worker.engine.token_counts import TokenCounts
from worker.metrics import WorkerMetrics
from worker.models import device_linear
from worker.models.decoder import Decoder
from worker.models.device_packer import DevicePacker
from worker.models.layers import Linear, PlainLinear

BLOCKS = [1, 2, 3, 4]


@pytest.fixture
def caught() -> Iterator[Capture]:
    with capture("sm_90") as launches:
        yield launches


def make_runner(pack: Callable[[Tensor], Linear] = PlainLinear, kv_dtype: torch.dtype = torch.bfloat16) -> GraphRunner:
    config = tiny()
    weights = RandomWeights(config, torch.bfloat16, torch.device("cpu"), pack=pack).make()
    sizes = Sizes(blocks_total=40, block_size=16, sequences_max=20, tokens_per_step=40)
    decoder = Decoder(config, weights, TritonOps())
    return GraphRunner(decoder, sizes, EagerGraphs(), kv_dtype=kv_dtype, draw=draw_nothing)


def draw_nothing(logits: Tensor, params: DrawParams, edits: LogitEdits | None) -> Drawn:
    """As the kernel would, were it run: its ids are whatever lay in memory."""
    drawn = draw_tokens(logits, params, edits)
    drawn.ids.zero_()
    return drawn


def sized(runner: GraphRunner, lengths: Iterable[int], rows_: Iterable[int]):
    """Prompts of these lengths, chunks, and decodes of these numbers of rows."""
    ids = list(range(2, 50))
    for length in lengths:
        yield batch_of(runner, [(ids[:length], 0, BLOCKS, greedy(length))])
    for rows in rows_:
        yield batch_of(runner, [(ids[: 20 + row], 19 + row, BLOCKS, greedy(20 + row)) for row in range(rows)])
        yield batch_of(runner, [(ids[:2], row % 2, BLOCKS, None if row % 3 else greedy(2)) for row in range(rows)])


def steps(runner: GraphRunner):
    """Of every size, and of every kind of sampling."""
    ids = list(range(2, 50))
    yield from sized(runner, range(1, 41), range(1, 21))
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
        for rows in (1, 2, 17):
            drawn = SampleParams(temperature=0.7, top_p=0.9, seed=3, choice=1, position=1, **options)
            params = [greedy(1, **options), *[drawn] * (rows - 1)]
            yield batch_of(runner, [(ids[:1], 0, BLOCKS, each) for each in params])


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_no_step_asks_for_a_kernel_that_the_warm_up_did_not(caught):
    runner = make_runner()
    runner.warm_up()
    warm = set(caught.variants)
    assert len({variant.kernel for variant in caught.variants.values()}) >= 7
    for batch in steps(runner):
        runner.submit(batch)
    late = [caught.variants[key].kernel for key in set(caught.variants) - warm]
    assert late == []


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(
    ("weights", "kv_dtype", "kernels"),
    [
        ("int4", torch.int8, {"_quantized_matmul_kernel", "_whole_kernel"}),
        ("fp8", torch.float8_e4m3fn, {"_fp8_matmul_kernel", "_whole_fp8_kernel"}),
    ],
)
def test_nor_does_one_of_weights_and_a_pool_in_few_bits(caught, monkeypatch, weights, kv_dtype, kernels):
    monkeypatch.setattr(device_linear, "ROWS_MAX", 16)  # so that steps of this test are on both sides of it
    runner = make_runner(DevicePacker(weights, torch.bfloat16), kv_dtype)
    runner.warm_up()
    warm = set(caught.variants)
    assert kernels <= {variant.kernel for variant in caught.variants.values()}
    for batch in sized(runner, (1, 2, 7, 16, 17, 33, 40), (1, 2, 3, 16, 17, 20)):
        runner.submit(batch)
    assert [caught.variants[key].kernel for key in set(caught.variants) - warm] == []


def test_what_is_compiled_is_counted_and_told_once_the_worker_is_ready(caught):
    compilations = Compilations()
    compilations.watch()
    x, weight = torch.zeros(2, 64), torch.zeros(64)
    rms_norm(x, weight, 1e-5)
    assert (compilations.count, compilations.late) == (1, 0)
    late: list[str] = []
    compilations.ready(late.append)
    rms_norm(x, weight, 1e-5)
    assert (compilations.count, compilations.late) == (2, 1)
    assert ["_rms_norm_kernel" in name for name in late] == [True]
    assert caught.variants, "what watched before is not called any more"


def test_a_kernel_compiled_while_serving_is_counted_for_an_alert(caught):
    metrics, compilations = WorkerMetrics(), Compilations()
    compilations.watch()
    x, weight = torch.zeros(2, 64), torch.zeros(64)
    rms_norm(x, weight, 1e-5)
    tell_late(compilations, metrics)
    assert b"\nforebay_kernels_compiled_late_total 0.0\n" in metrics.render()
    with structlog.testing.capture_logs() as lines:
        rms_norm(x, weight, 1e-5)
    assert b"\nforebay_kernels_compiled_late_total 1.0\n" in metrics.render()
    assert [line["event"] for line in lines] == ["kernel.compiled_late"]


def test_the_steps_of_this_test_differ(caught):
    batches = list(steps(make_runner()))
    shapes = {(len(batch.ids), len(batch.context_lens), len(batch.sample_rows)) for batch in batches}
    assert len(shapes) > 60
    assert all(batch.slots.dtype == np.int64 for batch in batches)
