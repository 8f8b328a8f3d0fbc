"""A weight of few bits made whole, in the type of activations, for products with many rows that cuBLAS takes.

    whole[n, k] = scale[n, group of k] * code[n, k] + minimum[n, group of k]         8 or 4 bits in groups
    whole[n, k] = scale[n] * e4m3[n, k]                                              E4M3

Source of the E4M3: OCP's 8-bit floating point. Bytes moved a weight: 0.5 to 1 of codes and, in groups of 32, 0.06 to
0.25 of factors in, 2 out in bfloat16; 2 FLOPs; memory decides. 4096 x 14336 from 4 bits is 158 MB, 37 us at 4.3 TB/s,
and cuBLAS reads 117 MB of it again: together twice what the product of few rows in bfloat16 costs. Torch's own
operations would move 20 to 40 bytes.

Owns two kernels and their launchers: one program a tile of 16 outputs and a stretch of inputs, or a stretch of one
output. Knows no product. Invariant: a weight is computed in float32 and rounded once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.capability import has_fp8
from kernels.fp8_matmul import Fp8Weight
from kernels.kv_pool import raw
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.quantized_kv import widen
from kernels.quantized_weight import LANES, QuantizedWeight
from kernels.quantized_weight import pack as pack_weight

_CODES = 128  # rows of 16 codes that a program takes
_BLOCK = 1024
_WARPS = 4
_LANES = tl.constexpr(LANES)


@triton.jit(do_not_specialize=["outputs"])
def _whole_kernel(
    whole_ptr: tl.tensor,  # [outputs, INPUTS]
    codes_ptr: tl.tensor,  # [tiles, INPUTS or half of them, 16]
    scales_ptr: tl.tensor,  # [tiles, INPUTS / GROUP, 16]
    minimums_ptr: tl.tensor,  # [tiles, INPUTS / GROUP, 16]
    outputs: tl.tensor,
    INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
    EACH: tl.constexpr,  # inputs of a byte: 2 of 4 bits
    CODES: tl.constexpr,
) -> None:
    tile = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, _LANES)[None, :]
    row = (tl.program_id(1) * CODES + tl.arange(0, CODES))[:, None]
    there = (row < INPUTS // EACH) & (tile * _LANES + lane < outputs)
    codes = tl.load(codes_ptr + (tile * (INPUTS // EACH) + row) * _LANES + lane, mask=there, other=0)
    factor = (tile * (INPUTS // GROUP) + row * EACH // GROUP) * _LANES + lane
    scale = tl.load(scales_ptr + factor, mask=there, other=0.0).to(tl.float32)
    place = whole_ptr + (tile * _LANES + lane) * INPUTS + row * EACH
    if EACH == 2:
        minimum = tl.load(minimums_ptr + factor, mask=there, other=0.0).to(tl.float32)
        tl.store(place, (codes & 15).to(tl.float32) * scale + minimum, mask=there)
        tl.store(place + 1, (codes >> 4).to(tl.float32) * scale + minimum, mask=there)
    else:
        tl.store(place, codes.to(tl.float32) * scale, mask=there)


@triton.jit
def _whole_fp8_kernel(
    whole_ptr: tl.tensor,  # [outputs, INPUTS]
    codes_ptr: tl.tensor,  # [outputs, INPUTS] bytes
    scales_ptr: tl.tensor,  # [outputs]
    INPUTS: tl.constexpr,
    NATIVE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    output = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    codes = tl.load(codes_ptr + output * INPUTS + column, mask=column < INPUTS, other=0)
    value = widen(codes, tl.float16, "fp8", NATIVE).to(tl.float32) * tl.load(scales_ptr + output)
    tl.store(whole_ptr + output * INPUTS + column, value, mask=column < INPUTS)


def whole_weight(weight: QuantizedWeight, dtype: torch.dtype) -> Tensor:
    """[outputs, inputs] of `dtype`."""
    weight.check()
    codes, scales, minimums = weight.codes, weight.scales, weight.minimums
    four_bits = codes.dtype == torch.uint8
    whole = torch.empty(weight.outputs, weight.inputs, dtype=dtype, device=codes.device)
    rows = codes.shape[1] * codes.shape[2]
    on_device(codes.device, _whole_kernel, (codes.shape[0], triton.cdiv(rows, _CODES)))(
        *(whole, codes, scales, scales if minimums is None else minimums, weight.outputs),
        INPUTS=weight.inputs,
        GROUP=weight.group,
        EACH=2 if four_bits else 1,
        CODES=_CODES,
        num_warps=_WARPS,
        enable_fp_fusion=False,
    )
    return whole


def whole_fp8_weight(weight: Fp8Weight, dtype: torch.dtype) -> Tensor:
    """[outputs, inputs] of `dtype`."""
    weight.check()
    outputs, inputs = weight.codes.shape
    whole = torch.empty(outputs, inputs, dtype=dtype, device=weight.codes.device)
    on_device(whole.device, _whole_fp8_kernel, (outputs, triton.cdiv(inputs, _BLOCK)))(
        *(whole, raw(weight.codes), weight.scales),
        INPUTS=inputs,
        NATIVE=has_fp8(whole.device),
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )
    return whole


def launches(_architecture: str) -> list[Launch]:
    outputs, inputs = 32, 4096

    def run(bits: int, factor: torch.dtype) -> None:
        codes = torch.zeros(outputs, inputs, dtype=torch.int8 if bits == 8 else torch.uint8)
        factors = torch.zeros(outputs, inputs // 32, dtype=factor)
        whole_weight(pack_weight(codes, factors, factors if bits == 4 else None), torch.bfloat16)

    def run_fp8() -> None:
        weight = Fp8Weight(torch.zeros(outputs, inputs).to(torch.float8_e4m3fn), torch.zeros(outputs))
        whole_fp8_weight(weight, torch.bfloat16)

    return [
        *(
            Launch(
                f"whole weight, {bits} bits, {str(factor).removeprefix('torch.')} factors",
                lambda bits=bits, factor=factor: run(bits, factor),
                checked=factor == torch.float16,
            )
            for bits in (4, 8)
            for factor in (torch.float16, torch.float32)
        ),
        Launch("whole weight, fp8", run_fp8, checked=True),
    ]
