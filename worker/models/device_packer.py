"""The choice of the layer for a weight on a CUDA device. Apart from the CPU's, whose compiler it does not need.

- `auto`, `fp32`, `bf16`: in the type of activations, multiplied by cuBLAS.
- `int8`, `int4`: the numbers of `rounding`, as on a CPU; but a matrix whose number of inputs is not a multiple of 32
  stays in the type of activations.
- `fp8`: E4M3 with a scale per output; rows of small steps become E4M3 too, each with its own scale.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kernels import fp8_matmul, quantized_weight
from kernels.quantized_weight import QuantizedWeight
from worker.models.device_linear import Fp8Linear, QuantizedLinear
from worker.models.layers import Linear, PlainLinear
from worker.models.rounding import eight_bits, four_bits
from worker.models.source import GROUP, Codes

DeviceMode = Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"]

_BITS = {"int8": eight_bits, "int4": four_bits}


@dataclass(slots=True, frozen=True)
class DevicePacker:
    """Implements `layers.Packer` for activations of `dtype`."""

    mode: DeviceMode
    dtype: torch.dtype

    @property
    def keeps_codes(self) -> bool:
        return False

    def __call__(self, weight: Tensor | Codes, bias: Tensor | None = None) -> Linear:
        assert isinstance(weight, Tensor)
        if self.mode == "fp8":
            return Fp8Linear(fp8_matmul.quantize_weight(weight), bias)
        if self.mode not in _BITS or weight.shape[1] % GROUP:
            return PlainLinear(weight.to(self.dtype), bias)
        codes = _BITS[self.mode](weight)
        assert codes is not None
        return QuantizedLinear(packed(codes), bias)


def packed(codes: Codes) -> QuantizedWeight:
    """In the kernels' layout; the factors become float16 if that changes none of them."""
    factors = [codes.scales] if codes.minimums is None else [codes.scales, codes.minimums]
    if all(torch.equal(values.half().float(), values) for values in factors):
        factors = [values.half() for values in factors]
    return quantized_weight.pack(codes.codes, *factors)
