"""A linear layer from a weight in few bits, multiplied by code that is compiled for this processor. Knows no model.

In a module of its own because it imports the compiler, which only CPUs need.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.packed_weight import PackedWeight, matmul, rounded_matmul


class CompiledLinear:
    """From a weight in few bits; computes in float32, or `rounds` what a 4-bit weight is multiplied with to 8 bits."""

    def __init__(self, weight: PackedWeight, bias: Tensor | None = None, *, rounds: bool = False) -> None:
        self.weight = weight
        self.nbytes = weight.nbytes
        self.bias = None if bias is None else bias.float()
        self.rounds = rounds and weight.codes.dtype == np.uint8

    def __call__(self, x: Tensor) -> Tensor:
        exact = x.dtype == torch.float32
        product = rounded_matmul if self.rounds else matmul
        out = product(x if exact else x.float(), self.weight)
        if self.bias is not None:
            out += self.bias
        return out if exact else out.to(x.dtype)
