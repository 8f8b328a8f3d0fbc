import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from kernels.packed_weight import PackedWeight, matmul
from worker.models.quantize import bf16, int4, int8, smallest_exact


def values(packed: PackedWeight, inputs: int) -> torch.Tensor:
    return matmul(torch.eye(inputs), packed).T


def random(outputs: int = 24, inputs: int = 96) -> torch.Tensor:
    return torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(2)) * 0.05


@pytest.mark.parametrize(
    ("kind", "codes"),
    [(Kind.Q4_1, "uint8"), (Kind.Q8_0, "int8"), (Kind.BF16, "uint16")],
)
def test_what_a_file_holds_is_found_again_bit_by_bit(kind, codes):
    weight = random()
    weight[3] = 0.0
    held = torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind).astype(np.float32))
    packed = smallest_exact(held)
    assert packed is not None
    assert packed.codes.dtype.name == codes
    assert torch.equal(values(packed, 96), held)


def test_what_needs_float32_is_refused():
    assert smallest_exact(random()) is None


@pytest.mark.parametrize(("rounded", "steps"), [(int4, 15), (int8, 254)])
def test_rounding_is_to_the_nearest(rounded, steps):
    weight = random()
    packed = rounded(weight)
    assert packed is not None
    groups = weight.view(24, 3, 32)
    span = groups.amax(-1) - groups.amin(-1) if rounded is int4 else 2 * groups.abs().amax(-1)
    error = (values(packed, 96) - weight).view(24, 3, 32).abs().amax(-1)
    assert (error <= span / steps * 0.51 + 1e-6).all()


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-6, 1e6, 1e30])
@pytest.mark.parametrize("rounded", [int4, int8, bf16])
def test_every_size_of_weight(rounded, scale):
    weight = random() * scale
    packed = rounded(weight)
    assert packed is not None
    torch.testing.assert_close(values(packed, 96), weight, rtol=0, atol=0.02 * scale)
