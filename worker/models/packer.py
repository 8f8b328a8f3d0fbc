"""Which layer a weight becomes: the modes of `--weights`, and what each promises. Knows no model.

- `auto`: each matrix in the bits in which the file keeps it, if it keeps codes that can be multiplied from; else in the
  fewest bits that give its values back exactly, as 4-bit or 8-bit values or bfloat16 may; where float32 is needed, in
  the type that is computed in.
- `fp32`: all in float32. `bf16`, `int8`, `int4`: rounded to that, whatever the file holds; but a matrix whose inputs
  are no multiple of 32 stays in the type that is computed in.

What a CUDA device has of them, and `fp8`, is in `device_packer`. How weights are kept says nothing of what they are
multiplied with: a packer that `rounds` makes layers that multiply 4-bit weights with 8 bits (docs/adr/0020).
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from kernels.packed_weight import PackedWeight, pack
from worker.models import quantize
from worker.models.compiled_linear import CompiledLinear
from worker.models.layers import Linear, Packer, linear, packing_works
from worker.models.source import GROUP, Codes

WeightsMode = Literal["auto", "fp32", "bf16", "int8", "int4", "fp8"]

CPU = torch.device("cpu")
FORMATS = {
    "auto": quantize.smallest_exact,
    "bf16": quantize.bf16,
    "int8": quantize.int8,
    "int4": quantize.int4,
}


@dataclass(slots=True, frozen=True)
class ModePacker:
    """Implements `layers.Packer`: makes layers from float32 weights, or from codes, for activations of `dtype`."""

    mode: WeightsMode
    dtype: torch.dtype
    rounds: bool = False

    @property
    def keeps_codes(self) -> bool:
        return self.mode == "auto"

    def __call__(self, weight: Tensor | Codes, bias: Tensor | None = None) -> Linear:
        if isinstance(weight, Codes):
            assert self.keeps_codes
            return self._compiled(pack(weight.codes, weight.scales, weight.minimums), bias)
        if self.mode == "fp32" or weight.shape[1] % GROUP:
            return linear(weight.to(self.dtype), bias)
        packed = FORMATS[self.mode](weight)
        if packed is None or (_is_bf16(packed) and self._multiplies_bf16()):
            return linear(weight.to(self.dtype), bias)
        return self._compiled(packed, bias)

    def _compiled(self, weight: PackedWeight, bias: Tensor | None) -> Linear:
        return CompiledLinear(weight, bias, rounds=self.rounds)

    def _multiplies_bf16(self) -> bool:
        """Bfloat16 times bfloat16 is what oneDNN does best."""
        return self.dtype == torch.bfloat16 and packing_works(CPU, self.dtype)


def packer(mode: WeightsMode, dtype: torch.dtype, device: torch.device, *, rounds: bool = False) -> Packer:
    """Raises ValueError for what cannot be. A device other than a CPU has no use for `rounds`."""
    assert mode in get_args(WeightsMode)
    on_cpu = device.type == "cpu"
    if on_cpu and mode == "fp8":
        raise ValueError("weights fp8 are multiplied on CUDA alone; a CPU takes auto, fp32, bf16, int8 or int4")
    if (mode == "fp32" and dtype != torch.float32) or (mode == "bf16" and not on_cpu and dtype != torch.bfloat16):
        raise ValueError(f"weights {mode} and dtype {str(dtype).removeprefix('torch.')} exclude each other here")
    if on_cpu:
        return ModePacker(mode, dtype, rounds)
    from worker.models.device_packer import DevicePacker  # noqa: PLC0415 - imports triton, which a CPU has no use for

    return DevicePacker(mode, dtype)


def _is_bf16(weight: PackedWeight) -> bool:
    return weight.codes.dtype.name == "uint16"
