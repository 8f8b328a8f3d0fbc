"""Weights made whole by the kernels: bit by bit what the plain definition says."""

import pytest
import torch

from kernels.fp8_matmul import quantize_weight
from kernels.quantized_weight import QuantizedWeight, quantize
from kernels.whole_weight import whole_fp8_weight, whole_weight


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("factors", [torch.float16, torch.float32])
@pytest.mark.parametrize(("outputs", "inputs", "group"), [(1, 32, 32), (20, 96, 32), (33, 640, 64)])
def test_codes_in_groups(dtype, bits, factors, outputs, inputs, group):
    packed = quantize(torch.randn(outputs, inputs), bits=bits, group=group)
    minimums = None if packed.minimums is None else packed.minimums.to(factors)
    weight = QuantizedWeight(outputs, packed.codes, packed.scales.to(factors), minimums)
    assert torch.equal(whole_weight(weight, dtype), weight.whole(dtype))


@pytest.mark.parametrize(("outputs", "inputs"), [(1, 16), (3, 1_100)])
def test_e4m3(dtype, outputs, inputs):
    weight = quantize_weight(torch.randn(outputs, inputs) * 0.1)
    assert torch.equal(whole_fp8_weight(weight, dtype), weight.whole(dtype))
