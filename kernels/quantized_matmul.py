"""`x @ weight.T` for few rows, with weights of 8 or 4 bits in groups that share a scale.

    y[m, n] = sum over groups g of  scale[g, n] * (sum over k in g of x[m, k] * code[n, k])
                                    + minimum[g, n] * (sum over k in g of x[m, k])

    weight: | 64 outputs |  a program goes down its inputs,     x: 16 rows; of 4-bit codes the inputs of even and of odd
            | group 0    |  a chunk of a group at a time        number are two products, so nothing is interleaved
            | group 1    |
            | ...        |  SPLIT_INPUTS of them; another program has the rest (split_sum.py)

Codes are whole numbers that every 16-bit type holds exactly, so a weight is never rounded: the scale is applied to the
group's float32 sum. A 4-bit code becomes a number by setting the last bits of another, which is taken off again with
the minimum. Bytes moved are the weight's: with float16 factors and groups of 32, 5 bits a weight (4.25 with groups of
128), and 8.5 bits (8.13) of 8-bit codes, which have no minimums; 2 FLOPs a weight and row. A layer of 4096 x 14336 at
batch 1 is 37 MB, 8.5 us at 4.3 TB/s, against 27 us in bfloat16. Instructions cost more than that: the machine code for
sm_90 has 6.4 a 4-bit weight in groups of 128 and 12 in groups of 32, at 30 T a second about 13 and 24 us. Each 16 rows
read the weight once more from the L2 cache: past ROWS_MAX, multiply with `QuantizedWeight.whole` instead.

Owns the kernel and its launcher. Knows no model. Invariant: a row's sums have one order, whatever the number of rows,
and no row's scale depends on another row: activations are not quantized here.
"""

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import Launch
from kernels.quantized_weight import LANES, QuantizedWeight
from kernels.quantized_weight import pack as pack_weight
from kernels.split_sum import splits_of, sum_splits

ROWS_MAX = 64  # more are as well done by a product with the whole weight

_ROWS = 16
_OUTPUTS = 64
_CHUNK_MIN = 32
_CODES_MAX = 64  # codes of an output that are taken at once; more might spill
_WARPS = 4
_STAGES = 4
_LANES = tl.constexpr(LANES)


@triton.jit
def _offset(dtype: tl.constexpr) -> Any:
    """The number whose last mantissa bits are a code's, so that setting them adds the code."""
    return 128.0 if dtype == tl.bfloat16 else (1024.0 if dtype == tl.float16 else 0.0)


@triton.jit
def _offset_code(code: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """`code` + `_offset`, exactly. A conversion would take four times as long, and decide how fast a product is."""
    if dtype == tl.bfloat16:
        return (code.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True)
    if dtype == tl.float16:
        return (code.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True)
    return code.to(dtype)  # pyright: ignore[reportArgumentType] - triton takes a type known when it compiles


@triton.jit(do_not_specialize=["rows"])
def _quantized_matmul_kernel(
    parts_ptr: tl.tensor,  # [splits, rows, outputs]
    x_ptr: tl.tensor,  # [rows, inputs]
    codes_ptr: tl.tensor,  # [tiles, CHUNKS, CHUNK or half of it, 16]
    scales_ptr: tl.tensor,  # [tiles, GROUPS, 16]
    minimums_ptr: tl.tensor,  # [tiles, GROUPS, 16]
    rows: tl.tensor,
    x_stride: tl.tensor,
    outputs: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNKS_A_GROUP: tl.constexpr,
    CHUNKS_A_SPLIT: tl.constexpr,
    FOUR_BITS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    CHUNK: tl.constexpr,
) -> None:
    CODES: tl.constexpr = CHUNK // 2 if FOUR_BITS else CHUNK
    GROUPS: tl.constexpr = CHUNKS // CHUNKS_A_GROUP
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    there = (row < rows)[:, None]
    tile, lane = (output // _LANES).to(tl.int64), output % _LANES
    known = output < (outputs + _LANES - 1) // _LANES * _LANES
    k = tl.arange(0, CODES)
    x_place = x_ptr + row.to(tl.int64)[:, None] * x_stride + (k * 2 if FOUR_BITS else k)[None, :]
    code_place = codes_ptr + (tile * CHUNKS * CODES * _LANES + lane)[None, :] + (k * _LANES)[:, None]
    factor_place = tile * GROUPS * _LANES + lane
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    first = split * CHUNKS_A_SPLIT
    for chunk in range(first, tl.minimum(first + CHUNKS_A_SPLIT, CHUNKS)):
        factors = factor_place + chunk // CHUNKS_A_GROUP * _LANES
        codes = tl.load(code_place + chunk * CODES * _LANES, mask=known[None, :], other=0)
        scale = tl.load(scales_ptr + factors, mask=known, other=0.0)
        x = tl.load(x_place + chunk * CHUNK, mask=there, other=0.0)
        if FOUR_BITS:
            odd = tl.load(x_place + chunk * CHUNK + 1, mask=there, other=0.0)
            part = tl.dot(x, _offset_code(codes & 15, x.dtype), input_precision="ieee")
            part = tl.dot(odd, _offset_code(codes >> 4, x.dtype), part, input_precision="ieee")
            minimum = tl.load(minimums_ptr + factors, mask=known, other=0.0)
            total = tl.sum(x.to(tl.float32) + odd.to(tl.float32), axis=1)
            wide = scale.to(tl.float32)
            minimum = minimum.to(tl.float32) - wide * _offset(x.dtype)
            acc += part * wide[None, :] + total[:, None] * minimum[None, :]
        else:
            part = tl.dot(x, codes.to(x.dtype), input_precision="ieee")
            acc += part * scale.to(tl.float32)[None, :]
    place = (split.to(tl.int64) * rows + row)[:, None] * outputs + output[None, :]
    tl.store(parts_ptr + place, acc, mask=there & (output < outputs)[None, :])


def quantized_matmul(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x: [rows, inputs] bfloat16, float16 or float32; its rows may lie apart. Returns [rows, outputs] of its type."""
    rows, inputs = x.shape
    outputs, codes = weight.outputs, weight.codes
    four_bits = codes.dtype == torch.uint8
    assert inputs == weight.inputs
    assert weight.group % _CHUNK_MIN == 0
    assert x.stride(1) == 1
    assert x.device == codes.device
    assert codes.is_contiguous()
    assert weight.scales.is_contiguous()
    assert (weight.minimums is not None) == four_bits
    if rows == 0:
        return x.new_empty(0, outputs)
    chunk = _chunk_of(weight, x.dtype)
    chunks = inputs // chunk
    splits = splits_of(outputs, inputs, block_outputs=_OUTPUTS)
    parts = torch.empty(splits, rows, outputs, device=x.device)
    cast("Any", _quantized_matmul_kernel)[(triton.cdiv(outputs, _OUTPUTS), triton.cdiv(rows, _ROWS), splits)](
        *(parts, x, codes, weight.scales, weight.scales if weight.minimums is None else weight.minimums),
        *(rows, x.stride(0), outputs),
        CHUNKS=chunks,
        CHUNKS_A_GROUP=weight.group // chunk,
        CHUNKS_A_SPLIT=triton.cdiv(chunks, splits),
        FOUR_BITS=four_bits,
        ROWS=_ROWS,
        OUTPUTS=_OUTPUTS,
        CHUNK=chunk,
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return sum_splits(parts, x.dtype)


def _chunk_of(weight: QuantizedWeight, dtype: torch.dtype) -> int:
    """Inputs that are taken at once: a power of two that divides the group. In float32, more than 32 would spill."""
    if dtype == torch.float32:
        return _CHUNK_MIN
    most = 2 * _CODES_MAX if weight.codes.dtype == torch.uint8 else _CODES_MAX
    return min(weight.group & -weight.group, most)


def launches(_architecture: str) -> list[Launch]:
    def run(bits: int, group: int, dtype: torch.dtype) -> None:
        outputs, inputs = 64, 2048
        codes = torch.zeros(outputs, inputs, dtype=torch.int8 if bits == 8 else torch.uint8)
        factors = torch.zeros(outputs, inputs // group, dtype=torch.float16)
        weight = pack_weight(codes, factors, factors if bits == 4 else None)
        quantized_matmul(torch.zeros(2, inputs, dtype=dtype), weight)

    return [
        Launch(
            f"quantized product, {bits} bits, groups of {group}, {str(dtype).removeprefix('torch.')}",
            lambda bits=bits, group=group, dtype=dtype: run(bits, group, dtype),
            checked=group == 32 and dtype == torch.bfloat16,
        )
        for bits in (4, 8)
        for group in (32, 64, 128)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ]
