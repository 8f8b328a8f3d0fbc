"""Linear layers of a CUDA device from weights in few bits: int8 and int4 in groups, E4M3 with a scale per output.

The codes are the only copy of a weight. A few rows (up to `ROWS_MAX`: decodes) are multiplied from the codes by the
kernels. More rows (prompts, large batches) are multiplied by cuBLAS, from one slice of the weight at a time that is
expanded to the type of the rows, so the whole weight is never expanded. The number of rows decides, so for E4M3 a row
has its activations rounded in small steps and not in large ones. Knows no model and no file.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.fp8_matmul import Fp8Weight, fp8_matmul, quantize_rows
from kernels.quantized_matmul import ROWS_MAX, quantized_matmul
from kernels.quantized_weight import LANES, QuantizedWeight
from kernels.whole_weight import whole_fp8_weight, whole_weight

SLICE_ELEMENTS = 1 << 24  # expanded at a time: 32 MiB in bfloat16, which stay in the L2 cache of an H200


class QuantizedLinear:
    def __init__(self, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        minimums = 0 if weight.minimums is None else weight.minimums.nbytes
        self.nbytes = weight.codes.nbytes + weight.scales.nbytes + minimums

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= ROWS_MAX:
            out = quantized_matmul(x, self.weight)
        else:
            out = _by_slices(x, self.weight.outputs, self._whole)
        return out if self.bias is None else out.add_(self.bias)

    def _whole(self, outputs: slice, dtype: torch.dtype) -> Tensor:
        weight, tiles = self.weight, slice(outputs.start // LANES, -(-outputs.stop // LANES))
        minimums = None if weight.minimums is None else weight.minimums[tiles]
        part = QuantizedWeight(outputs.stop - outputs.start, weight.codes[tiles], weight.scales[tiles], minimums)
        return whole_weight(part, dtype)


class Fp8Linear:
    def __init__(self, weight: Fp8Weight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.nbytes = weight.codes.nbytes + weight.scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        if len(x) <= ROWS_MAX:
            out = fp8_matmul(*quantize_rows(x), self.weight, x.dtype)
        else:
            out = _by_slices(x, len(self.weight.scales), self._whole)
        return out if self.bias is None else out.add_(self.bias)

    def _whole(self, outputs: slice, dtype: torch.dtype) -> Tensor:
        return whole_fp8_weight(Fp8Weight(self.weight.codes[outputs], self.weight.scales[outputs]), dtype)


def _by_slices(x: Tensor, outputs: int, whole: Callable[[slice, torch.dtype], Tensor]) -> Tensor:
    """`whole` gives [outputs of a slice, inputs]; slices begin at a multiple of LANES."""
    step = max(SLICE_ELEMENTS // x.shape[1] // LANES, 1) * LANES
    out = x.new_empty(len(x), outputs)
    for start in range(0, outputs, step):
        part = slice(start, min(start + step, outputs))
        torch.mm(x, whole(part, x.dtype).T, out=out[:, part])
    return out
