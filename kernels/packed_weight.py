"""A weight in the layout that `packed_matmul` multiplies from, and the product. Knows no model and no file format.

Invariant: a PackedWeight is the only copy of its numbers; what is not a multiple of 16 outputs is padded with zeros.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from kernels.packed_matmul import ROWS_FEW, multiply_few, multiply_many
from kernels.rounded_matmul import multiply, round_rows
from kernels.vector_code import GROUP, HAS_HALVES, LANES, PART, PARTS

_NONE: NDArray[np.float32] = np.empty((0, 0, 0), np.float32)


@dataclass(slots=True, frozen=True)
class PackedWeight:
    outputs: int
    codes: NDArray[Any]  # [tiles, groups, 32, 16] int8 or uint16 (bfloat16), or [tiles, groups, 4, 16, 4] uint8 of two
    scales: NDArray[Any]  # [tiles, groups, 16] float32 or uint16 (float16), or empty
    minimums: NDArray[Any]  # the same

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
    whole = codes.view(torch.int16) if codes.dtype == torch.bfloat16 else codes
    if codes.dtype == torch.uint8:
        eights = whole.view(outputs, -1, 2, PART // 2)
        words = (eights[:, :, 0] | (eights[:, :, 1] << 4)).view(torch.int32)
        numbers = (
            _tiled(words.view(outputs, -1, PARTS)).numpy().view(np.uint8).reshape(-1, inputs // GROUP, PARTS, LANES, 4)
        )
        return PackedWeight(outputs, numbers, _factors(scales), _factors(minimums))
    numbers = _tiled(whole.view(outputs, inputs // GROUP, -1)).numpy()
    if codes.dtype == torch.bfloat16:
        numbers = numbers.view(np.uint16)
    return PackedWeight(outputs, numbers, _factors(scales), _factors(minimums))


def matmul(x: Tensor, weight: PackedWeight) -> Tensor:
    """`x @ weight.T`. x: [rows, inputs] float32, contiguous. Returns [rows, outputs] float32."""
    assert x.shape[1] == weight.codes.shape[1] * GROUP
    assert x.dtype == torch.float32
    assert x.is_contiguous(), "the loops compute addresses by themselves"
    out, array = fresh((x.shape[0], weight.codes.shape[0] * LANES))
    multiply = multiply_few if x.shape[0] <= ROWS_FEW else multiply_many
    multiply(x.numpy(), weight.codes, weight.scales, weight.minimums, array)
    return out if out.shape[1] == weight.outputs else out[:, : weight.outputs].contiguous()


def rounded_matmul(x: Tensor, weight: PackedWeight) -> Tensor:
    """The same with x rounded to 8 bits in groups of 32 inputs; the weight has 4 bits."""
    assert x.is_contiguous()
    rows, inputs = x.shape
    q = np.empty((rows, inputs), np.int8)
    scales, sums = np.empty((2, rows, inputs // GROUP), np.float32)
    round_rows(x.numpy(), q, scales, sums)
    out, result = fresh((rows, weight.codes.shape[0] * LANES))
    multiply(q, scales, sums, weight.codes, weight.scales, weight.minimums, result)
    return out if out.shape[1] == weight.outputs else out[:, : weight.outputs].contiguous()


def fresh(shape: tuple[int, ...]) -> tuple[Tensor, NDArray[np.float32]]:
    """Memory for a result as a torch tensor and as a numpy array. Making the tensor first takes twice the time."""
    array = np.empty(shape, np.float32)
    return torch.from_numpy(array), array


def _factors(values: Tensor | None) -> NDArray[Any]:
    """In float16 where that is exact, as it is for what GGUF files and our own rounding keep in it."""
    if values is None:
        return _NONE
    halves = values.half()
    if HAS_HALVES and torch.equal(halves.float(), values):
        return _tiled(halves.view(torch.int16).unsqueeze(-1)).squeeze(2).numpy().view(np.uint16)
    return _tiled(values.unsqueeze(-1)).squeeze(2).numpy()


def _tiled(rows: Tensor) -> Tensor:
    """[outputs, groups, n] -> [tiles, groups, n, 16]. By torch, which copies with all threads."""
    missing = -len(rows) % LANES
    padded = F.pad(rows, (0, 0, 0, 0, 0, missing)) if missing else rows
    return padded.view(-1, LANES, *rows.shape[1:]).permute(0, 2, 3, 1).contiguous()
