"""The choice of the layer for a weight: the modes of `--weights`, and what each promises. Knows no model.

- `auto`: each matrix in the bits in which the file has it, if it has codes that can be multiplied from; otherwise in
  the fewest bits that reproduce its values exactly, as 4-bit or 8-bit values or bfloat16; if only float32 does, in the
  type of activations.
- `fp32`: all in float32. `bf16`, `int8`, `int4`: rounded to that, whatever the file has; but a matrix whose number of
  inputs is not a multiple of 32 stays in the type of activations.

For a CUDA device, and for `fp8`, see `device_packer`. How weights are stored does not determine what they are
multiplied with: with `rounds`, layers round activations to 8 bits for 4-bit weights (docs/adr/0020).
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
        """For bfloat16 times bfloat16, oneDNN is fastest."""
        return self.dtype == torch.bfloat16 and packing_works(CPU, self.dtype)


def packer(mode: WeightsMode, dtype: torch.dtype, device: torch.device, *, rounds: bool = False) -> Packer:
    """Raises ValueError for an unsupported combination. `rounds` has no effect on a device other than a CPU."""
    assert mode in get_args(WeightsMode)
    on_cpu = device.type == "cpu"
    if on_cpu and mode == "fp8":
        raise ValueError("weights fp8 are multiplied on CUDA alone; a CPU takes auto, fp32, bf16, int8 or int4")
    if (mode == "fp32" and dtype != torch.float32) or (mode == "bf16" and not on_cpu and dtype != torch.bfloat16):
        raise ValueError(f"weights {mode} and dtype {str(dtype).removeprefix('torch.')} exclude each other here")
    if on_cpu:
        return ModePacker(mode, dtype, rounds)
    from worker.models.device_packer import DevicePacker  # noqa: PLC0415 - imports triton, which a CPU does not need

    return DevicePacker(mode, dtype)


def _is_bf16(weight: PackedWeight) -> bool:
    return weight.codes.dtype.name == "uint16"
