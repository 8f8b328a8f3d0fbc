import math

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize

from worker.models.compiled_linear import CompiledLinear
from worker.models.layers import PackedLinear, PlainLinear, linear
from worker.models.packer import packer

CPU = torch.device("cpu")
MODES = ["auto", "fp32", "bf16", "int8", "int4"]


def held(kind: Kind, outputs: int = 48, inputs: int = 64) -> torch.Tensor:
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(3)) * 0.1
    return torch.from_numpy(dequantize(quantize(weight.numpy(), kind), kind))


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0, Kind.BF16, Kind.F32])
def test_auto_loses_nothing(kind):
    weight, x, bias = held(kind), torch.randn(5, 64), torch.randn(48)
    layer = packer("auto", torch.float32, CPU)(weight, bias)
    assert isinstance(layer, CompiledLinear) == (kind != Kind.F32)
    assert (layer.nbytes < weight.nbytes) == (kind != Kind.F32)
    torch.testing.assert_close(layer(x), linear(weight, bias)(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Kind.Q4_1, Kind.Q8_0, Kind.BF16])
def test_inputs_of_4_bit_weights_alone_are_rounded_where_that_is_asked_for(kind):
    weight, x = held(kind), torch.randn(5, 64, generator=torch.Generator().manual_seed(6))
    exact, rounds = (packer("auto", torch.float32, CPU, rounds=asked)(weight) for asked in (False, True))
    assert torch.equal(exact(x), rounds(x)) == (kind in {Kind.Q8_0, Kind.BF16})
    torch.testing.assert_close(rounds(x), exact(x), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("mode", MODES)
def test_inputs_that_do_not_fill_a_group_stay_dense(mode):
    layer = packer(mode, torch.float32, CPU)(torch.randn(8, 40))
    assert isinstance(layer, PackedLinear | PlainLinear)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("mode", "rounds"), [*((mode, False) for mode in MODES), ("auto", True)])
def test_a_row_beside_loud_neighbours(mode, rounds, dtype):
    """Compiled products have its bits; oneDNN and MKL may take another kernel for another number of rows, so with these
    the company has as many rows.
    """
    if mode == "fp32" and dtype != torch.float32:
        pytest.skip("excluded")
    layer = packer(mode, dtype, CPU, rounds=rounds)(held(Kind.Q4_1))
    for rows in (1, 2, 4, 7, 16, 33, 200):
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(4)).to(dtype)
        whole = layer(x)
        for quiet in {0, rows // 2, rows - 1}:
            if isinstance(layer, CompiledLinear):
                assert torch.equal(layer(x[quiet : quiet + 1])[0], whole[quiet])
            for loud in (x * 1e4, torch.full_like(x, math.nan)):
                mixed = loud.clone()
                mixed[quiet] = x[quiet]
                assert torch.equal(layer(mixed)[quiet], whole[quiet])


def test_what_excludes_each_other_is_said():
    with pytest.raises(ValueError, match="weights fp32 and dtype bfloat16 exclude"):
        packer("fp32", torch.bfloat16, CPU)
    with pytest.raises(ValueError, match="weights bf16 and dtype float32 exclude"):
        packer("bf16", torch.float32, torch.device("cuda"))
    with pytest.raises(ValueError, match="weights fp8 are multiplied on CUDA alone"):
        packer("fp8", torch.bfloat16, CPU)
