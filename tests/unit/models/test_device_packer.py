"""Weights in few bits as a CUDA device keeps them; the interpreter's tests multiply from them."""

import pytest
import torch

from kernels.packed_weight import matmul
from tests.unit.models.test_packer import Kind, held
from worker.models import quantize
from worker.models.device_packer import DevicePacker, packed
from worker.models.layers import PlainLinear
from worker.models.packer import packer
from worker.models.rounding import eight_bits, four_bits

OUTPUTS, INPUTS = 40, 96  # the last tile of 16 is not full
BITS_EACH = {"int8": 8.5, "int4": 6.0, "fp8": 8 + 32 / INPUTS}  # with factors; in float32 where halves lose


def weight() -> torch.Tensor:
    return torch.randn(OUTPUTS, INPUTS, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("mode", list(BITS_EACH))
def test_the_bytes_of_a_weight_are_told(mode):
    layer = packer(mode, torch.float32, torch.device("cuda"))(weight())
    padded = 48 if mode != "fp8" else OUTPUTS
    assert layer.nbytes == round(padded * INPUTS * BITS_EACH[mode] / 8)


@pytest.mark.parametrize(("ours", "theirs"), [(eight_bits, quantize.int8), (four_bits, quantize.int4)])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_1, Kind.Q8_0])
def test_the_numbers_are_those_of_a_cpu(ours, theirs, kind):
    values = held(kind, OUTPUTS, INPUTS)
    on_cpu = matmul(torch.eye(INPUTS), theirs(values)).T
    assert torch.equal(packed(ours(values)).whole(torch.float32), on_cpu)


def test_factors_that_are_halves_are_kept_as_halves():
    kept = packed(four_bits(held(Kind.Q4_1, OUTPUTS, INPUTS)))
    assert kept.scales.dtype == torch.float16
    assert kept.minimums is not None
    assert kept.minimums.dtype == torch.float16


@pytest.mark.parametrize("mode", ["auto", "bf16", "int8", "int4"])
def test_what_is_not_rounded_or_fills_no_group_stays_dense(mode):
    inputs = 40 if mode.startswith("int") else INPUTS
    layer = DevicePacker(mode, torch.bfloat16)(torch.randn(8, inputs))
    assert isinstance(layer, PlainLinear)
    assert layer.nbytes == 8 * inputs * 2
