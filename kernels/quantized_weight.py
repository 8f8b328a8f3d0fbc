"""A weight of 8- or 4-bit codes in groups that share a scale, as `quantized_matmul` reads it. Tensors on any device.

    int8:   weight = scale * code                       uint8, two codes a byte:   weight = scale * code + minimum

The layout is that of `packed_weight.PackedWeight`, with groups of any multiple of 32: tiles of 16 outputs, in them
groups of inputs, in them one row of 16 outputs an input (or a pair of inputs, the first in the low half):

    codes[tile, group, input of the group, output of the tile]          scales[tile, group, output of the tile]

Knows no kernel, no model and no file format. Invariant: what is not a multiple of 16 outputs is padded with zeros.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.arguments import expect

FACTORS = {torch.float16, torch.bfloat16, torch.float32}
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
        """Raises ValueError or AssertionError for tensors that are not what the fields say."""
        codes, four_bits = self.codes, self.codes.dtype == torch.uint8
        assert four_bits or codes.dtype == torch.int8
        assert (self.minimums is not None) == four_bits, "4-bit codes have minimums, 8-bit ones have none"
        tiles, groups = -(-self.outputs // LANES), codes.shape[1]
        expect("codes", codes, (tiles, groups, codes.shape[2], LANES), codes.dtype, codes.device)
        assert self.scales.dtype in FACTORS
        for name, factors in (("scales", self.scales), ("minimums", self.minimums)):
            if factors is not None:
                expect(name, factors, (tiles, groups, LANES), self.scales.dtype, codes.device)

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
    outputs, inputs = codes.shape
    groups = scales.shape[1]
    assert codes.dtype == (torch.int8 if minimums is None else torch.uint8)
    assert inputs % groups == 0
    assert inputs // groups % GROUP_MULTIPLE == 0
    assert minimums is None or minimums.shape == scales.shape
    numbers = _padded(codes).view(-1, LANES, groups, inputs // groups).permute(0, 2, 3, 1)
    if minimums is not None:
        numbers = numbers[:, :, 0::2] | (numbers[:, :, 1::2] << 4)
    return QuantizedWeight(
        outputs, numbers.contiguous(), _factors(scales), None if minimums is None else _factors(minimums)
    )


def quantize(weight: Tensor, *, bits: int, group: int) -> QuantizedWeight:
    """weight: [outputs, inputs], rounded to nearest in each group: 8 bits about 0, or 4 bits from its least number."""
    assert bits in {4, 8}
    assert weight.shape[1] % group == 0
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
