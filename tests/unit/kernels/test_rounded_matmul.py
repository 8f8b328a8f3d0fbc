"""Products of 4-bit weights with x rounded to 8 bits: against whole numbers, on edges, and with loud neighbours."""

import math

import numpy as np
import pytest
import torch
from numba import njit

from kernels.packed_weight import PackedWeight, pack, rounded_matmul
from kernels.rounded_matmul import ROWS, PairDots, WordDots, product, round_rows

GROUP = 32


def weight(outputs: int, inputs: int) -> tuple[PackedWeight, torch.Tensor]:
    """Packed, and the same numbers in float64. The first output has the largest codes: its sums are the largest."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    groups = (outputs, inputs // GROUP)
    scales = (torch.rand(groups, generator=generator) + 0.1).half().float()
    minimums = torch.randn(groups, generator=generator)
    codes = torch.randint(0, 16, (outputs, inputs), generator=generator, dtype=torch.uint8)
    codes[0] = 15
    wide = codes.view(*groups, GROUP).double() * scales.double().unsqueeze(-1) + minimums.double().unsqueeze(-1)
    return pack(codes, scales, minimums), wide.view(outputs, inputs)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """What is left of x, in float64."""
    groups = x.view(len(x), -1, GROUP)
    scales = groups.abs().amax(-1, keepdim=True) / 127
    return (torch.nan_to_num(groups / scales).round() * scales.double()).view(x.shape)


@pytest.mark.parametrize("rows", [1, 2, 3, ROWS, ROWS + 1, 2 * ROWS + 3])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (7, 64), (33, 32), (64, 160)])
def test_the_product_is_that_of_the_rounded_rows(rows, outputs, inputs):
    packed, wide = weight(outputs, inputs)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
    x[0] = 3.0  # every byte is the largest, so no sum may overflow
    x[rows // 2, :GROUP] = 0.0
    want = rounded(x) @ wide.T
    torch.testing.assert_close(rounded_matmul(x, packed).double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_fit(sign):
    packed, wide = weight(16, 96)
    x = torch.full((1, 96), 3.0 * sign)
    torch.testing.assert_close(rounded_matmul(x, packed).double(), x.double() @ wide.T, rtol=1e-5, atol=1e-4)


def test_a_row_is_rounded_to_the_nearest_by_its_own_largest_values():
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(5))
    x[1] *= 1e3
    difference = (rounded(x) - x).abs().view(2, -1, GROUP)
    assert (difference <= x.view(2, -1, GROUP).abs().amax(-1, keepdim=True) / 127 / 2 * 1.001).all()
    packed = pack(torch.eye(64, dtype=torch.uint8), torch.ones(64, 2), torch.zeros(64, 2))
    torch.testing.assert_close(rounded_matmul(x, packed).double(), rounded(x), rtol=1e-6, atol=0)


def test_a_row_is_bitwise_the_same_alone_and_beside_loud_neighbours():
    packed, _ = weight(48, 96)
    for rows in (2, 3, ROWS, ROWS + 1, 2 * ROWS + 3):
        x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(1))
        alone = torch.cat([rounded_matmul(row.unsqueeze(0), packed) for row in x])
        assert torch.equal(rounded_matmul(x, packed), alone)
        for loud in (x * 1e4, torch.full_like(x, math.nan), torch.full_like(x, math.inf)):
            for quiet in range(rows):
                mixed = loud.clone()
                mixed[quiet] = x[quiet]
                assert torch.equal(rounded_matmul(mixed, packed)[quiet], alone[quiet])


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_one_number_that_is_not_finite_makes_its_row_so(wrong):
    packed, _ = weight(16, 96)
    x = torch.ones(2, 96)
    x[0, 40] = wrong
    got = rounded_matmul(x, packed)
    assert got[0].isnan().all()
    assert got[1].isfinite().all()


def test_numbers_too_small_for_a_scale_count_as_none():
    packed, _ = weight(16, 64)
    x = torch.full((1, 64), 1e-40)
    assert torch.equal(rounded_matmul(x, packed), torch.zeros(1, 16))


def test_both_ways_to_multiply_bytes_give_the_same_bits():
    packed, _ = weight(16, 96)
    x = torch.randn(3, 96, generator=torch.Generator().manual_seed(2)).numpy()
    q, scales, sums = np.empty((3, 96), np.int8), np.empty((3, 3), np.float32), np.empty((3, 3), np.float32)
    round_rows(x, q, scales, sums)
    assert np.array_equal(by(WordDots, q, scales, sums, packed), rounded_matmul(torch.from_numpy(x), packed).numpy())


def by(dots: type[PairDots | WordDots], q, scales, sums, packed: PackedWeight) -> np.ndarray:
    three = product(3, dots)

    @njit
    def run(q, scales, sums, codes, weight_scales, minimums, out):
        three(q, scales, sums, codes, weight_scales, minimums, out, 0, 0)

    out = np.empty((3, 16), np.float32)
    run(q, scales, sums, packed.codes, packed.scales, packed.minimums, out)
    return out
