"""A linear layer and the choice of how its weight is stored. Knows no model.

On a CPU the weight is packed once into the block layout that oneDNN multiplies from. Measured on 2 cores with the
demo model, against `F.linear`: float32 73 instead of 104 ms and bfloat16 19 instead of 34 ms a step of 16 rows.
"""

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from worker.models.source import Codes


class Linear(Protocol):
    nbytes: int  # of the weight

    def __call__(self, x: Tensor) -> Tensor:
        """`x @ weight.T + bias`. x: [rows, inputs], contiguous. Returns [rows, outputs]."""
        ...


class Packer(Protocol):
    @property
    def keeps_codes(self) -> bool:
        """Whether it accepts a weight as the file's `Codes`, if the file has them."""
        ...

    def __call__(self, weight: Tensor | Codes, bias: Tensor | None = None) -> Linear:
        """The layer of `weight` [outputs, inputs] and `bias` [outputs], stored as the packer chooses."""
        ...


class PlainLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight  # [outputs, inputs]
        self.nbytes = weight.nbytes
        self.bias = bias  # [outputs]

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class PackedLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias  # [outputs]
        self.nbytes = weight.nbytes
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)  # noqa: SLF001  opaque block layout

    def __call__(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")  # noqa: SLF001


def linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest layer for `weight` on its device."""
    works = packing_works(weight.device, weight.dtype)
    return PackedLinear(weight, bias) if works else PlainLinear(weight, bias)


def packing_works(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packed layers exist in this build of torch and agree with plain ones.

    They are internal operations of torch: a build without oneDNN lacks them, a processor without native bfloat16
    refuses that type, and a later release may change them.
    """
    if device.type != "cpu" or (dtype == torch.bfloat16 and not bf16_is_native()):
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 32, generator=generator).to(dtype)
    x = torch.randn(3, 32, generator=generator).to(dtype)
    try:
        got = PackedLinear(weight)(x)
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(got.float(), F.linear(x, weight).float(), rtol=2e-2, atol=2e-2)


def bf16_is_native() -> bool:
    """Whether this processor multiplies bfloat16 by itself; emulated, it is slower than float32."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    except (AttributeError, RuntimeError):
        return False
