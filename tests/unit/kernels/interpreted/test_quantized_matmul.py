"""Products with weights of 8 and 4 bits, whole and floating, against float64."""

import math

import pytest
import torch
from torch import Tensor

from kernels import reference_matmul
from kernels.fp8_matmul import SPLIT_INPUTS as FP8_SPLIT_INPUTS
from kernels.fp8_matmul import Fp8Weight, fp8_matmul, quantize_rows, quantize_weight
from kernels.packed_weight import pack as pack_for_cpu
from kernels.quantized_matmul import SPLIT_INPUTS, quantized_matmul
from kernels.quantized_weight import QuantizedWeight, pack, quantize
from kernels.split_sum import PROGRAMS_ENOUGH, splits_of
from tests.unit.kernels.interpreted.near import sparse

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}


def assert_near(got: Tensor, exact: Tensor) -> None:
    """To within a part of the largest: sums of mixed signs cancel."""
    scale = float(exact.abs().max())
    torch.testing.assert_close(got.double() / scale, exact / scale, rtol=0, atol=TOLERANCE[got.dtype])


# One and more rows than a program takes, outputs that fill no tile of 16 nor 64, inputs of more than one split.
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    ("rows", "outputs", "inputs", "group"),
    [(1, 16, 32, 32), (3, 70, 96, 32), (8, 64, 128, 64), (9, 5, 256, 128), (2, 33, SPLIT_INPUTS + 64, 32)],
)
def test_quantized_products(dtype, rows, outputs, inputs, group, bits) -> None:
    weight = quantize(torch.randn(outputs, inputs), bits=bits, group=group)
    x = torch.randn(rows, inputs).to(dtype)
    got = quantized_matmul(x, weight)
    assert got.dtype == dtype
    assert_near(got, reference_matmul.quantized_matmul(x, weight))


@pytest.mark.parametrize("bits", [4, 8])
def test_a_weight_comes_back_whole(bits) -> None:
    weight = torch.randn(37, 128)
    quantized = quantize(weight, bits=bits, group=64)
    steps = (weight.amax() - weight.amin()) / (15 if bits == 4 else 127)
    assert quantized.whole(torch.float32).shape == weight.shape
    assert float((quantized.whole(torch.float32) - weight).abs().max()) < float(steps) * 0.51
    assert (quantized.inputs, quantized.group) == (128, 64)


def test_8_bit_codes_and_all_factors_lie_as_on_a_cpu() -> None:
    codes, factors = torch.randint(0, 16, (20, 64)), (torch.randn(20, 2), torch.randn(20, 2))
    here, there = (function(codes.to(torch.int8), factors[0]) for function in (pack, pack_for_cpu))
    assert torch.equal(here.codes, torch.from_numpy(there.codes))
    here, there = (function(codes.to(torch.uint8), *factors) for function in (pack, pack_for_cpu))
    assert torch.equal(here.scales, torch.from_numpy(there.scales))
    assert torch.equal(here.minimums, torch.from_numpy(there.minimums))


def test_factors_of_sixteen_bits() -> None:
    wide = quantize(torch.randn(16, 64), bits=4, group=32)
    assert wide.minimums is not None
    narrow = QuantizedWeight(16, wide.codes, wide.scales.half(), wide.minimums.half())
    x = torch.randn(2, 64)
    assert_near(quantized_matmul(x, narrow), reference_matmul.quantized_matmul(x, narrow))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the noise
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_a_row_is_the_same_in_any_company(kind) -> None:
    inputs, rows_each = (FP8_SPLIT_INPUTS, 16) if kind == "fp8" else (SPLIT_INPUTS, 8)
    weight, x = torch.randn(40, inputs + 32), torch.randn(rows_each + 2, inputs + 32)

    def product(x: Tensor) -> Tensor:
        if kind == "fp8":
            return fp8_matmul(*quantize_rows(x), quantize_weight(weight), torch.float32)
        return quantized_matmul(x, quantize(weight, bits=int(kind[3:]), group=32))

    alone = product(x[rows_each + 1 :])
    x[3], x[rows_each] = math.nan, 1e30
    assert torch.equal(product(x)[rows_each + 1 :], alone)


def test_splits_follow_from_the_weight_alone() -> None:
    assert splits_of(64, 512, block_outputs=64, split_inputs=512) == 1
    assert splits_of(64, 513, block_outputs=64, split_inputs=512) == 2
    assert splits_of(64 * PROGRAMS_ENOUGH, 4096, block_outputs=64, split_inputs=512) == 1


def test_rows_quantized_to_eight_bits(dtype) -> None:
    x = torch.randn(5, 33).to(dtype)
    x[1], x[2, 0] = 0.0, 60000.0
    codes, scales = quantize_rows(x)
    exact_codes, exact_scales = reference_matmul.quantize_rows(x)
    assert torch.equal(scales, exact_scales)
    assert torch.equal(codes.view(torch.uint8), exact_codes.view(torch.uint8))


@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 16, 16), (3, 70, 129), (17, 5, FP8_SPLIT_INPUTS + 40)])
def test_fp8_products(dtype, rows, outputs, inputs) -> None:
    weight, (codes, scales) = quantize_weight(torch.randn(outputs, inputs)), quantize_rows(torch.randn(rows, inputs))
    got = fp8_matmul(codes, scales, weight, dtype)
    assert got.dtype == dtype
    assert_near(got, reference_matmul.fp8_matmul(codes, scales, weight.codes, weight.scales))


def test_a_quantized_weight_is_near_what_it_was() -> None:
    weight = torch.randn(8, 64)
    error = (quantize_weight(weight).whole(torch.float32) - weight).abs()
    assert (error <= weight.abs() * 2**-4 + 1e-3).all()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_broken_row_does_not_become_a_number(value) -> None:
    x = torch.randn(2, 32)
    x[0, 7] = value
    y = fp8_matmul(*quantize_rows(x), quantize_weight(torch.randn(4, 32)), torch.float32)
    assert y[0].isnan().all()
    assert y[1].isfinite().all()


def test_no_rows() -> None:
    assert quantized_matmul(torch.empty(0, 32), quantize(torch.randn(3, 32), bits=4, group=32)).shape == (0, 3)
    weight = Fp8Weight(torch.zeros(3, 32).to(torch.float8_e4m3fn), torch.ones(3))
    assert fp8_matmul(*quantize_rows(torch.empty(0, 32)), weight, torch.float16).shape == (0, 3)


def test_rows_beyond_two_to_the_31_elements() -> None:
    stride = 2**30 + 64  # fits in 32 bits, as two of it do not
    x = sparse(2 * stride + 32).as_strided((3, 32), (stride, 1))
    x.copy_(torch.randn(3, 32))
    weight = quantize(torch.randn(4, 32), bits=8, group=32)
    assert torch.equal(quantized_matmul(x, weight), quantized_matmul(x.clone(), weight))
    assert torch.equal(quantize_rows(x)[1], quantize_rows(x.clone())[1])
