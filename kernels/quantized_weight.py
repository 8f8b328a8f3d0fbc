"""A weight of 8- or 4-bit codes in groups that share a scale, as `quantized_matmul` reads it. Tensors on any device.

    int8:   weight = scale * code                       uint8, two codes a byte:   weight = scale * code + minimum

Tiles of 16 outputs, in them groups of inputs (of any multiple of 32), in them one row of 16 outputs an input (or a pair
of inputs, the first in the low half). But for 4-bit codes, `packed_weight.PackedWeight` has the same layout:

    codes[tile, group, input of the group, output of the tile]          scales[tile, group, output of the tile]

Knows no kernel, no model and no file format. Invariant: what is not a multiple of 16 outputs is padded with zeros.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that

LANES = 16
GROUP_MULTIPLE = 32  # two halves of 16 inputs are the least that a matrix instruction takes


@dataclass(slots=True, frozen=True)
class QuantizedWeight:
    outputs: int
    codes: Tensor  # [tiles, groups, group, 16] int8, or [tiles, groups, group / 2, 16] uint8 of two
    scales: Tensor  # [tiles, groups, 16] float16, bfloat16 or float32
    minimums: Tensor | None  # the same; of uint8 alone

    @property
    def group(self) -> int:
        return self.codes.shape[2] * (2 if self.codes.dtype == torch.uint8 else 1)

    @property
    def inputs(self) -> int:
        return self.codes.shape[1] * self.group

    def check(self) -> None:
        """Raises ValueError unless the tensors are what the fields say."""
        codes, tiles = self.codes, -(-self.outputs // LANES)
        expect("weight.codes", codes, (tiles, None, None, LANES), (torch.int8, torch.uint8), codes.device)
        factors = (tiles, codes.shape[1], LANES)
        expect("weight.scales", self.scales, factors, FLOAT_TYPES, codes.device)
        four_bits = codes.dtype == torch.uint8
        expect_that("weight.minimums", (self.minimums is not None) == four_bits, "minimums exactly with 4-bit codes")
        if self.minimums is not None:
            expect("weight.minimums", self.minimums, factors, self.scales.dtype, codes.device)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """[outputs, inputs] in plain torch: what `whole_weight` must equal."""
        codes = self.codes
        if codes.dtype == torch.uint8:
            codes = torch.stack((codes & 15, codes >> 4), 3).flatten(2, 3)
        weight = codes.float() * self.scales.float().unsqueeze(2)
        if self.minimums is not None:
            weight += self.minimums.float().unsqueeze(2)
        return weight.permute(0, 3, 1, 2).reshape(-1, self.inputs)[: self.outputs].to(dtype)


def pack(codes: Tensor, scales: Tensor, minimums: Tensor | None = None) -> QuantizedWeight:
    """codes: [outputs, inputs] int8, or uint8 from 0 to 15 with minimums; scales, minimums: [outputs, groups]."""
    expect("codes", codes, (None, None), torch.int8 if minimums is None else torch.uint8, codes.device)
    outputs, inputs = codes.shape
    expect("scales", scales, (outputs, None), FLOAT_TYPES, codes.device)
    groups = scales.shape[1]
    whole = groups > 0 and inputs % (groups * GROUP_MULTIPLE) == 0
    expect_that("scales", whole, f"groups of a multiple of {GROUP_MULTIPLE} inputs")
    if minimums is not None:
        expect("minimums", minimums, scales.shape, scales.dtype, codes.device)
    numbers = _padded(codes).view(-1, LANES, groups, inputs // groups).permute(0, 2, 3, 1)
    if minimums is not None:
        numbers = numbers[:, :, 0::2] | (numbers[:, :, 1::2] << 4)
    return QuantizedWeight(
        outputs, numbers.contiguous(), _factors(scales), None if minimums is None else _factors(minimums)
    )


def quantize(weight: Tensor, *, bits: int, group: int) -> QuantizedWeight:
    """weight: [outputs, inputs], rounded to nearest in each group: 8 bits about 0, or 4 bits from its least number."""
    expect("weight", weight, (None, None), FLOAT_TYPES, weight.device)
    expect_that("bits", bits in {4, 8}, "4 or 8")
    expect_that("group", group > 0 and weight.shape[1] % group == 0, "a divisor of the weight's inputs")
    grouped = weight.float().unflatten(1, (-1, group))  # [outputs, groups, group]
    if bits == 8:
        scales = (grouped.abs().amax(-1) / 127).clamp_min(torch.finfo(torch.float32).tiny)
        codes = (grouped / scales.unsqueeze(-1)).round().to(torch.int8)
        return pack(codes.flatten(1), scales)
    least, most = grouped.aminmax(dim=-1)
    scales = ((most - least) / 15).clamp_min(torch.finfo(torch.float32).tiny)
    codes = ((grouped - least.unsqueeze(-1)) / scales.unsqueeze(-1)).round().clamp(0, 15).to(torch.uint8)
    return pack(codes.flatten(1), scales, least)


def _factors(values: Tensor) -> Tensor:
    return _padded(values).view(-1, LANES, values.shape[1]).transpose(1, 2).contiguous()


def _padded(rows: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows, (0, 0, 0, -len(rows) % LANES))
