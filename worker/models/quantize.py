"""How a weight is written in few bits: in groups of 32 inputs, rounded to the nearest, or only if nothing is lost.

The formats are those of GGUF's Q4_1, Q8_0 and BF16, so that a weight that came from one of them is found again bit by
bit in its float32 values. Knows no file.
"""

import torch
from torch import Tensor

from kernels.packed_weight import PackedWeight, pack
from worker.models.source import GROUP

SAMPLE_ROWS = 64
LEVELS_4BIT, LEVELS_8BIT = 15, 127


def int4(weight: Tensor, *, exact: bool = False) -> PackedWeight | None:
    """`scale * code + minimum`. weight: [outputs, inputs] float32. None if `exact` and it would not be."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    minimums = groups.amin(-1)
    scales = _half(groups.amax(-1).sub_(minimums).div_(LEVELS_4BIT))
    factor, offset = scales.unsqueeze(-1), minimums.unsqueeze(-1)
    codes = ((groups - offset) / factor).nan_to_num_(0.0).round_().clamp_(0, LEVELS_4BIT)
    if exact and not torch.equal(codes * factor + offset, groups):  # the product has 15 bits: this rounds once
        return None
    return pack(codes.to(torch.uint8).view(weight.shape), scales, minimums)


def int8(weight: Tensor, *, exact: bool = False) -> PackedWeight | None:
    """`scale * code`. The same otherwise."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    scales = _half(groups.abs().amax(-1).div_(LEVELS_8BIT))
    factor = scales.unsqueeze(-1)
    codes = (groups / factor).nan_to_num_(0.0).round_().clamp_(-LEVELS_8BIT, LEVELS_8BIT)
    if exact and not torch.equal(codes * factor, groups):
        return None
    return pack(codes.to(torch.int8).view(weight.shape), scales)


def bf16(weight: Tensor, *, exact: bool = False) -> PackedWeight | None:
    codes = weight.bfloat16()
    if exact and not torch.equal(codes.float(), weight):
        return None
    return pack(codes)


def smallest_exact(weight: Tensor) -> PackedWeight | None:
    """In the fewest bits that lose nothing; None if only float32 does. The first rows rule most formats out, which for
    a whole matrix takes several times its memory.
    """
    formats = (form for form in (int4, int8, bf16) if form(weight[:SAMPLE_ROWS], exact=True) is not None)
    return next((packed for form in formats if (packed := form(weight, exact=True)) is not None), None)


def _half(scales: Tensor) -> Tensor:
    """To float16 and back, as files keep them, where that neither overflows nor loses the scale."""
    rounded = scales.half().float()
    return torch.where(rounded.isfinite() & (rounded > 0), rounded, scales)
