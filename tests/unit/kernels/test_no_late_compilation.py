"""After its warm-up a runner asks triton for no kernel that it has not asked for before, whatever the step.

No device is needed: launches are caught before triton compiles (`kernels.capture`), so nothing is computed either.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import structlog
import torch

from kernels.capture import Capture, capture
from kernels.compilations import Compilations
from kernels.rms_norm import rms_norm
from tests.unit.kernels.captured import make_runner, sized, steps
from worker.cuda import tell_late
from worker.metrics import WorkerMetrics
from worker.models import device_linear
from worker.models.device_packer import DevicePacker


@pytest.fixture
def caught() -> Iterator[Capture]:
    with capture("sm_90") as launches:
        yield launches


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
