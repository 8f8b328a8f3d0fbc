"""How a CPU stores a weight in few bits: packed from the numbers of `rounding`, or as bfloat16. Knows no file."""

import torch
from torch import Tensor

from kernels.packed_weight import PackedWeight, pack
from worker.models.rounding import eight_bits, four_bits
from worker.models.source import Codes

SAMPLE_ROWS = 64


def int4(weight: Tensor, *, exact: bool = False) -> PackedWeight | None:
    """weight: [outputs, inputs] float32. None if `exact` and some value would change."""
    return _packed(four_bits(weight, exact=exact))


def int8(weight: Tensor, *, exact: bool = False) -> PackedWeight | None:
    """The same."""
    return _packed(eight_bits(weight, exact=exact))


def bf16(weight: Tensor, *, exact: bool = False) -> PackedWeight | None:
    codes = weight.bfloat16()
    if exact and not torch.equal(codes.float(), weight):
        return None
    return pack(codes)


def smallest_exact(weight: Tensor) -> PackedWeight | None:
    """In the fewest bits that lose nothing; None if only float32 does. Most formats are excluded by the first rows
    alone, since trying a whole matrix takes several times its memory.
    """
    formats = (form for form in (int4, int8, bf16) if form(weight[:SAMPLE_ROWS], exact=True) is not None)
    return next((packed for form in formats if (packed := form(weight, exact=True)) is not None), None)


def _packed(codes: Codes | None) -> PackedWeight | None:
    return None if codes is None else pack(codes.codes, codes.scales, codes.minimums)
