"""`x @ weight.T` with both in E4M3: a scale for each row of x, and one for each output of the weight.

    scale[m] = max |x[m]| / 448          q[m, k] = e4m3(x[m, k] / scale[m])                 quantize_rows
    y[m, n]  = scale[m] * weight_scale[n] * sum over k of q[m, k] * w[n, k]                 fp8_matmul

    weight: | 64 outputs |  128 inputs at a time, SPLIT_INPUTS a program        q: 16 rows
            | 64 outputs |  (split_sum.py)

Source of the type: OCP's 8-bit floating point. quantize_rows reads 2 bytes a number and writes 1, one program a row,
which stays in registers; about 8 FLOPs a number, bound by memory. fp8_matmul moves the weight's byte a number, 2 FLOPs
a weight and row: 4096 x 14336 at batch 1 is 59 MB, 13.7 us at 4.3 TB/s, half of bfloat16's. Chips below sm_89 have no
products of E4M3; there both are widened to float16, which holds E4M3 exactly, and the results are the same.

Owns both kernels and their launchers. Knows no model.
Invariant: a row's scale and sums are its own, in one order, whatever the other rows; a row with NaN or infinity gives
NaN, never a number.
"""

from dataclasses import dataclass
from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect
from kernels.capability import has_fp8
from kernels.kv_pool import raw
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.quantized_kv import quantize, widen
from kernels.split_sum import splits_of, sum_splits

LARGEST = 448.0
SPLIT_INPUTS = 1024

_LARGEST = tl.constexpr(LARGEST)
_ROWS = 16
_OUTPUTS = 64
_INPUTS = 128
_WARPS = 4
_STAGES = 4


@dataclass(slots=True, frozen=True)
class Fp8Weight:
    codes: Tensor  # [outputs, inputs] float8_e4m3fn, contiguous
    scales: Tensor  # [outputs] float32

    def check(self) -> None:
        """Raises ValueError unless the tensors are what the fields say."""
        expect("weight.codes", self.codes, (None, None), torch.float8_e4m3fn, self.codes.device)
        expect("weight.scales", self.scales, self.codes.shape[:1], torch.float32, self.codes.device)

    def whole(self, dtype: torch.dtype) -> Tensor:
        """[outputs, inputs] in plain torch: what `whole_fp8_weight` must equal."""
        return (self.codes.float() * self.scales.unsqueeze(1)).to(dtype)


def quantize_weight(weight: Tensor) -> Fp8Weight:
    """weight: [outputs, inputs], rounded to nearest."""
    scales = (weight.float().abs().amax(1) / LARGEST).clamp_min(torch.finfo(torch.float32).tiny)
    return Fp8Weight((weight.float() / scales.unsqueeze(1)).to(torch.float8_e4m3fn), scales)


@triton.jit
def _quantize_rows_kernel(
    codes_ptr: tl.tensor,  # [rows, INPUTS] bytes
    scales_ptr: tl.tensor,  # [rows]
    x_ptr: tl.tensor,  # [rows, INPUTS]
    x_stride: tl.tensor,
    INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + columns, mask=columns < INPUTS, other=0.0).to(tl.float32)
    finite = tl.abs(x) < float("inf")
    scale = tl.max(tl.where(finite, tl.abs(x), 0.0), axis=0) / _LARGEST
    codes = quantize(tl.where(finite, x, 0.0), scale, "fp8")
    tl.store(codes_ptr + row * INPUTS + columns, codes, mask=columns < INPUTS)
    tl.store(scales_ptr + row, tl.where(tl.min(finite.to(tl.int32), axis=0) == 1, scale, float("nan")))


@triton.jit(do_not_specialize=["rows"])
def _fp8_matmul_kernel(
    parts_ptr: tl.tensor,  # [splits, rows, outputs]
    codes_ptr: tl.tensor,  # [rows, INPUTS] bytes
    row_scales_ptr: tl.tensor,  # [rows]
    weight_ptr: tl.tensor,  # [outputs, INPUTS] bytes
    weight_scales_ptr: tl.tensor,  # [outputs]
    rows: tl.tensor,
    outputs: tl.tensor,
    INPUTS: tl.constexpr,
    INPUTS_A_SPLIT: tl.constexpr,
    NATIVE: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK)
    x_place = codes_ptr + row.to(tl.int64)[:, None] * INPUTS + k[None, :]
    weight_place = weight_ptr + output.to(tl.int64)[None, :] * INPUTS + k[:, None]
    first = split * INPUTS_A_SPLIT
    last = tl.minimum(first + INPUTS_A_SPLIT, INPUTS)
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(first, last, BLOCK):
        inside = start + k < last
        x = tl.load(x_place + start, mask=(row < rows)[:, None] & inside[None, :], other=0)
        weight = tl.load(weight_place + start, mask=(output < outputs)[None, :] & inside[:, None], other=0)
        if NATIVE:
            x, weight = x.to(tl.float8e4nv, bitcast=True), weight.to(tl.float8e4nv, bitcast=True)
        else:
            x, weight = widen(x, tl.float16, "fp8", False), widen(weight, tl.float16, "fp8", False)
        acc = tl.dot(x, weight, acc)
    row_scale = tl.load(row_scales_ptr + row, mask=row < rows, other=0.0)
    weight_scale = tl.load(weight_scales_ptr + output, mask=output < outputs, other=0.0)
    acc *= row_scale[:, None] * weight_scale[None, :]
    place = (split.to(tl.int64) * rows + row)[:, None] * outputs + output[None, :]
    tl.store(parts_ptr + place, acc, mask=(row < rows)[:, None] & (output < outputs)[None, :])


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x: [rows, inputs] of any float, its rows may lie apart. Returns [rows, inputs] float8_e4m3fn, [rows] float32."""
    expect("x", x, (None, None), FLOAT_TYPES, x.device, strided=True)
    rows, inputs = x.shape
    codes = torch.empty(rows, inputs, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, device=x.device)
    if rows == 0:
        return codes, scales
    block = cast("int", triton.next_power_of_2(inputs))
    on_device(x.device, _quantize_rows_kernel, (rows,))(
        *(raw(codes), scales, x, x.stride(0)),
        INPUTS=inputs,
        BLOCK=block,
        num_warps=min(max(block // 512, 1), 16),
    )
    return codes, scales


def fp8_matmul(codes: Tensor, scales: Tensor, weight: Fp8Weight, dtype: torch.dtype) -> Tensor:
    """codes, scales: as `quantize_rows` gives them. Returns [rows, outputs] of `dtype`."""
    weight.check()
    outputs, inputs = weight.codes.shape
    expect("codes", codes, (None, inputs), torch.float8_e4m3fn, weight.codes.device)
    rows = len(codes)
    expect("scales", scales, (rows,), torch.float32, codes.device)
    if rows == 0:
        return torch.empty(0, outputs, dtype=dtype, device=codes.device)
    splits = splits_of(outputs, inputs, block_outputs=_OUTPUTS, split_inputs=SPLIT_INPUTS)
    parts = torch.empty(splits, rows, outputs, device=codes.device)
    on_device(codes.device, _fp8_matmul_kernel, (triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, _ROWS), splits))(
        *(parts, raw(codes), scales, raw(weight.codes), weight.scales, rows, outputs),
        INPUTS=inputs,
        INPUTS_A_SPLIT=triton.cdiv(triton.cdiv(inputs, splits), _INPUTS) * _INPUTS,
        NATIVE=has_fp8(codes.device),
        ROWS=_ROWS,
        OUTPUTS=_OUTPUTS,
        BLOCK=_INPUTS,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return sum_splits(parts, dtype)


def launches(_architecture: str) -> list[Launch]:
    def run(inputs: int, dtype: torch.dtype) -> None:
        codes, scales = quantize_rows(torch.zeros(2, inputs, dtype=dtype))
        weight = Fp8Weight(torch.zeros(64, inputs).to(torch.float8_e4m3fn), torch.zeros(64))
        fp8_matmul(codes, scales, weight, dtype)

    return [
        Launch(
            f"fp8 product, {inputs} inputs", lambda inputs=inputs: run(inputs, torch.bfloat16), checked=inputs == 4096
        )
        for inputs in (4096, 14336)
    ]
