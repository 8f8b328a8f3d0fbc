"""Which layer a weight becomes: the modes of `--weights`, and what each promises. Knows no model.

- `auto`: each matrix in the fewest bits that give its values back exactly, as a file with 4-bit or 8-bit weights or in
  bfloat16 allows; where float32 is needed, or the device is no CPU, in the type that is computed in.
- `fp32`: all in float32. `bf16`, `int8`, `int4`: rounded to that, whatever the file holds; but a matrix whose inputs
  are no multiple of 32 stays in the type that is computed in.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from kernels.packed_weight import PackedWeight
from worker.models import quantize
from worker.models.compiled_linear import CompiledLinear
from worker.models.layers import Linear, Packer, linear, packing_works

WeightsMode = Literal["auto", "fp32", "bf16", "int8", "int4"]

FORMATS = {
    "auto": quantize.smallest_exact,
    "bf16": quantize.bf16,
    "int8": quantize.int8,
    "int4": quantize.int4,
}


def packer(mode: WeightsMode, dtype: torch.dtype, device: torch.device) -> Packer:
    """Makes layers from float32 weights for activations of `dtype`. Raises ValueError for what cannot be."""
    assert mode in get_args(WeightsMode)
    if device.type != "cpu" and mode in {"int8", "int4"}:
        raise ValueError(f"weights {mode} are multiplied on a CPU alone; {device.type} takes auto, fp32 or bf16")
    if (mode == "fp32" and dtype != torch.float32) or (
        mode == "bf16" and device.type != "cpu" and dtype != torch.bfloat16
    ):
        raise ValueError(f"weights {mode} and dtype {str(dtype).removeprefix('torch.')} exclude each other here")

    def dense(weight: Tensor, bias: Tensor | None) -> Linear:
        return linear(weight.to(dtype), bias)

    def make(weight: Tensor, bias: Tensor | None = None) -> Linear:
        if device.type != "cpu" or mode == "fp32" or weight.shape[1] % quantize.GROUP:
            return dense(weight, bias)
        packed = FORMATS[mode](weight)
        if packed is None or (_is_bf16(packed) and dtype == torch.bfloat16 and packing_works(device, dtype)):
            return dense(weight, bias)  # bfloat16 times bfloat16 is what oneDNN does best
        return CompiledLinear(packed, bias)

    return make


def _is_bf16(weight: PackedWeight) -> bool:
    return weight.codes.dtype.name == "uint16"
