"""All that a step works with lies on the runner's device, and not on the one that happens to be torch's current.

A device without memory stands for the second of two: torch refuses to mix it with another in any operation of its own,
and what kernels are given is looked at as they are launched. Nothing is computed.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

from kernels.capture import capture
from tests.unit.kernels.captured import drawn, make_runner, sized
from worker.models import device_linear
from worker.models.device_packer import DevicePacker

ELSEWHERE = torch.device("meta")


@pytest.fixture
def launched(monkeypatch) -> Iterator[dict[str, set[torch.device]]]:
    """By kernel, where the tensors lie that it is given."""
    places: dict[str, set[torch.device]] = {}
    run = JITFunction.run

    def noted(kernel, *arguments, **options):
        found = places.setdefault(kernel.fn.__name__, set())
        found |= {each.device for each in (*arguments, *options.values()) if isinstance(each, Tensor)}
        return run(kernel, *arguments, **options)

    monkeypatch.setattr(JITFunction, "run", noted)
    with capture("sm_90"):
        yield places


@pytest.mark.parametrize(
    ("weights", "kv_dtype", "kernels"),
    [
        ("auto", torch.bfloat16, {"_rms_norm_kernel", "_chunk_attention_kernel", "_draw_kernel", "_edit_kernel"}),
        ("int4", torch.int8, {"_quantized_matmul_kernel", "_whole_kernel", "_prepare_kernel"}),
        ("fp8", torch.float8_e4m3fn, {"_fp8_matmul_kernel", "_quantize_rows_kernel", "_whole_fp8_kernel"}),
    ],
)
def test_what_steps_work_with_lies_on_their_own_device(launched, monkeypatch, weights, kv_dtype, kernels) -> None:
    monkeypatch.setattr(device_linear, "ROWS_MAX", 16)  # so that steps of this test are on both sides of it
    runner = make_runner(DevicePacker(weights, torch.bfloat16), kv_dtype, ELSEWHERE)
    runner.warm_up()
    for batch in (*sized(runner, (1, 3, 17, 40), (1, 3, 17)), *drawn(runner, (1, 3))):
        runner.submit(batch)
    assert kernels < launched.keys()
    assert {place for places in launched.values() for place in places} == {ELSEWHERE}
