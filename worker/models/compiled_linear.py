"""A linear layer from a weight in few bits, multiplied by code that is compiled for this processor. Knows no model.

Apart from the other layers because it imports that compiler, which only CPUs need.
"""

import torch
from torch import Tensor

from kernels.packed_weight import PackedWeight, matmul


class CompiledLinear:
    """From a weight in few bits; computes in float32."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.nbytes = weight.nbytes
        self.bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        exact = x.dtype == torch.float32
        out = matmul(x if exact else x.float(), self.weight)
        if self.bias is not None:
            out += self.bias
        return out if exact else out.to(x.dtype)
