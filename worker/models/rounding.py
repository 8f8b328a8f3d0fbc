"""A weight as whole numbers of few bits, in groups of 32 inputs: rounded to the nearest, or only if nothing is lost.

The one place that decides the numbers, whatever device multiplies them. The formats are those of GGUF's Q4_1 and Q8_0,
so that a weight that came from one of them is found again bit by bit in its float32 values. Knows no file, no layout.
"""

import torch
from torch import Tensor

from worker.models.source import GROUP, Codes

LEVELS_4BIT, LEVELS_8BIT = 15, 127


def four_bits(weight: Tensor, *, exact: bool = False) -> Codes | None:
    """`scale * code + minimum`. weight: [outputs, inputs] float32. None if `exact` and some value would change."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    minimums = groups.amin(-1)
    scales = _half(groups.amax(-1).sub_(minimums).div_(LEVELS_4BIT))
    factor, offset = scales.unsqueeze(-1), minimums.unsqueeze(-1)
    codes = ((groups - offset) / factor).nan_to_num_(0.0).round_().clamp_(0, LEVELS_4BIT)
    if exact and not torch.equal(codes * factor + offset, groups):  # the product has 15 bits: this rounds once
        return None
    return Codes(codes.to(torch.uint8).view(weight.shape), scales, minimums)


def eight_bits(weight: Tensor, *, exact: bool = False) -> Codes | None:
    """`scale * code`. Otherwise as `four_bits`."""
    groups = weight.view(weight.shape[0], -1, GROUP)
    scales = _half(groups.abs().amax(-1).div_(LEVELS_8BIT))
    factor = scales.unsqueeze(-1)
    codes = (groups / factor).nan_to_num_(0.0).round_().clamp_(-LEVELS_8BIT, LEVELS_8BIT)
    if exact and not torch.equal(codes * factor, groups):
        return None
    return Codes(codes.to(torch.int8).view(weight.shape), scales, None)


def _half(scales: Tensor) -> Tensor:
    """To float16 and back, as files keep them, where that neither overflows nor loses the scale."""
    rounded = scales.half().float()
    return torch.where(rounded.isfinite() & (rounded > 0), rounded, scales)
