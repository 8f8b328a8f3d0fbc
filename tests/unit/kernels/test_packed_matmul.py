"""Products with weights in few bits: against float64, on the edges of every shape, and with loud neighbours."""

import math

import numpy as np
import pytest
import torch

from kernels.packed_matmul import ROWS_FEW, ROWS_WIDE
from kernels.packed_weight import PackedWeight, matmul, pack
from kernels.vector_code import HAS_HALVES

ROWS = sorted({1, 2, 3, ROWS_FEW, ROWS_FEW + 1, ROWS_WIDE, ROWS_WIDE + 3, 2 * ROWS_WIDE + ROWS_FEW + 1})


def weight(kind: str, outputs: int, inputs: int) -> tuple[PackedWeight, torch.Tensor]:
    """Packed, and the same numbers in float32. Factors of 8 bits are kept in float16, which they fit."""
    generator = torch.Generator().manual_seed(outputs + inputs)
    groups = (outputs, inputs // 32)
    scales = torch.rand(groups, generator=generator) + 0.1
    minimums = torch.randn(groups, generator=generator)
    if kind == "4 bits":
        codes = torch.randint(0, 16, (outputs, inputs), generator=generator, dtype=torch.uint8)
        wide = codes.view(*groups, 32).float() * scales.unsqueeze(-1) + minimums.unsqueeze(-1)
        return pack(codes, scales, minimums), wide.view(outputs, inputs)
    if kind == "8 bits":
        scales = scales.half().float()
        codes = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        return pack(codes, scales), (codes.view(*groups, 32).float() * scales.unsqueeze(-1)).view(outputs, inputs)
    codes = torch.randn(outputs, inputs, generator=generator).bfloat16()
    return pack(codes), codes.float()


KINDS = ["4 bits", "8 bits", "bfloat16"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (7, 64), (48, 96), (33, 32), (64, 160)])
def test_the_product(kind, rows, outputs, inputs):
    packed, wide = weight(kind, outputs, inputs)
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows))
    want = (x.double() @ wide.double().T).float()
    scale = float((x.abs() @ wide.abs().T).max())
    torch.testing.assert_close(matmul(x, packed), want, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_row_is_bitwise_the_same_alone_and_beside_loud_neighbours(kind, rows):
    packed, _ = weight(kind, 48, 96)
    x = torch.randn(rows, 96, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([matmul(row.unsqueeze(0), packed) for row in x])
    assert torch.equal(matmul(x, packed), alone)
    for loud in (x * 1e4, torch.full_like(x, math.nan), torch.full_like(x, math.inf)):
        for quiet in range(rows):
            mixed = loud.clone()
            mixed[quiet] = x[quiet]
            assert torch.equal(matmul(mixed, packed)[quiet], alone[quiet])


def test_bits_that_are_kept():
    sizes = {kind: weight(kind, 160, 320)[0].nbytes * 8 / (160 * 320) for kind in KINDS}
    assert sizes == {"4 bits": 6, "8 bits": 8.5 if HAS_HALVES else 9, "bfloat16": 16}


def test_factors_are_kept_in_few_bits_only_if_that_is_exact():
    codes = torch.zeros(16, 64, dtype=torch.int8)
    exact = torch.tensor([[0.5, 2.0**-24]]).expand(16, 2).contiguous()
    for factors, fit in ((exact, HAS_HALVES), (exact + 1e-5, False), (exact * 1e6, False), (exact / 2, False)):
        packed = pack(codes, factors)
        assert packed.scales.dtype == (np.uint16 if fit else np.float32)
        assert packed.scales.view(np.float16 if fit else np.float32).astype(np.float32)[0, :, 0].tolist() == (
            factors[0].tolist()
        )
