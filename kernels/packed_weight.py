"""A weight in the layout that `packed_matmul` multiplies from, and the product. Knows no model and no file format.

Invariant: a PackedWeight is the only copy of its numbers; what is not a multiple of 16 outputs is padded with zeros.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.packed_matmul import GROUP, LANES, ROWS_FEW, multiply_few, multiply_many

_NONE: NDArray[np.float32] = np.empty((0, 0, 0), np.float32)


@dataclass(slots=True, frozen=True)
class PackedWeight:
    outputs: int
    codes: NDArray[Any]  # [tiles, groups, 32, 16] int8 or uint16 (bfloat16), or [tiles, groups, 16, 16] uint8 of two
    scales: NDArray[np.float32]  # [tiles, groups, 16], or empty
    minimums: NDArray[np.float32]  # the same

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes + self.minimums.nbytes


def pack(codes: Tensor, scales: Tensor | None = None, minimums: Tensor | None = None) -> PackedWeight:
    """codes: [outputs, inputs] uint8 (0 to 15, with both factors), int8 (with scales) or bfloat16, inputs a multiple
    of 32; scales, minimums: [outputs, inputs / 32] float32.
    """
    outputs, inputs = codes.shape
    assert inputs % GROUP == 0
    assert all(values is None or values.shape == (outputs, inputs // GROUP) for values in (scales, minimums))
    whole = codes.view(torch.uint16) if codes.dtype == torch.bfloat16 else codes
    numbers = _padded(whole.numpy()).reshape(-1, LANES, inputs // GROUP, GROUP).transpose(0, 2, 3, 1)
    if codes.dtype == torch.uint8:
        numbers = numbers[:, :, 0::2] | (numbers[:, :, 1::2] << 4)
    return PackedWeight(outputs, np.ascontiguousarray(numbers), _factors(scales), _factors(minimums))


def matmul(x: Tensor, weight: PackedWeight) -> Tensor:
    """`x @ weight.T`. x: [rows, inputs] float32, contiguous. Returns [rows, outputs] float32."""
    assert x.shape[1] == weight.codes.shape[1] * GROUP
    assert x.dtype == torch.float32
    assert x.is_contiguous(), "the loops compute addresses by themselves"
    out = torch.empty(x.shape[0], weight.codes.shape[0] * LANES)
    multiply = multiply_few if x.shape[0] <= ROWS_FEW else multiply_many
    multiply(x.numpy(), weight.codes, weight.scales, weight.minimums, out.numpy())
    return out if out.shape[1] == weight.outputs else out[:, : weight.outputs].contiguous()


def _factors(values: Tensor | None) -> NDArray[np.float32]:
    if values is None:
        return _NONE
    padded = _padded(values.numpy())
    return np.ascontiguousarray(padded.reshape(-1, LANES, values.shape[1]).transpose(0, 2, 1))


def _padded(rows: NDArray[Any]) -> NDArray[Any]:
    return np.pad(rows, ((0, -len(rows) % LANES), (0, 0)))
