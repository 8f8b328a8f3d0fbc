"""`x @ weight.T` for few rows, with weights of 8 or 4 bits in groups that share a scale.

    y[m, n] = sum over groups g of  scale[g, n] * (sum over k in g of x[m, k] * code[n, k])
                                    + minimum[g, n] * (sum over k in g of x[m, k])

    weight: | 128 outputs |  as 32 words: a word has the codes of    acc0 += codes of outputs 0, 4, 8 .. x 8 rows
            | group 0     |  4 outputs and 1 input, or 2 of 4 bits   acc1 += codes of outputs 1, 5, 9 .. x 8 rows
            | group 1     |                                          acc2, acc3
            | ...         |  SPLIT_INPUTS of them; another program has the rest (split_sum.py)

Codes are whole numbers that every 16-bit type holds exactly, so a weight is never rounded: the scale is applied to the
group's float32 sum. A 4-bit code becomes a number by setting the last bits of another, which is taken off again with
the minimum; the sums of x come from the matrix unit, as products with ones. Bytes moved are the weight's: with float16
factors and groups of 32, 5 bits a weight (4.25 with groups of 128), and 8.5 bits (8.13) of 8-bit codes, which have no
minimums; 2 FLOPs a weight and row. Of instructions, for 8 rows, the machine code for sm_90 has 4.3 a 4-bit weight in
groups of 32 and 3.3 in groups of 128, and 5.4 an 8-bit weight; an H200 issues some 30 T a second.

A layer of 4096 x 14336 at batch 1, against 27 us in bfloat16: groups of 32 are 37 MB, 8.5 us at 4.3 TB/s, and 8.6 us
of instructions; groups of 128 7.3 and 6.5 us; 8 bits 14.5 and 10.7 us. So memory and instructions bound it alike at
about 3 times bfloat16's speed, if they overlap. Every 8 rows more cost the instructions again, and the weight from the
L2 cache: past ROWS_MAX, multiply with a slice of `whole_weight` instead.

Owns the kernel and its launcher. Knows no model. Invariant: a row's sums have one order, whatever the number of rows,
and no row's scale depends on another row: activations are not quantized here.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.part import part
from kernels.quantized_weight import LANES, QuantizedWeight
from kernels.quantized_weight import pack as pack_weight
from kernels.split_sum import splits_of, sum_splits

ROWS_MAX = 64  # more are as well done by a product with the whole weight
SPLIT_INPUTS = 512

_ROWS = 8
_WORDS = 32  # of 4 outputs each; a warp takes 16
_CHUNK_MIN = 32
_CODES_MAX = 64  # codes of an output that are taken at once; more might spill
_WARPS = 2
_STAGES = 4
_LANES = tl.constexpr(LANES)
_WORDS_A_TILE = tl.constexpr(LANES // 4)
_TYPES = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


@part
def _half_of(word: tl.tensor, HIGH: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """One of the two numbers of a word, whose width is twice theirs."""
    if dtype == tl.float32:
        half = ((word >> 32) if HIGH else word).to(tl.int32)
    else:
        half = ((word >> 16) if HIGH else word).to(tl.int16)
    return half.to(dtype, bitcast=True)


@part
def _offset(dtype: tl.constexpr) -> float:
    """The number whose last mantissa bits are a code's, so that setting them adds the code."""
    return 128.0 if dtype == tl.bfloat16 else (1024.0 if dtype == tl.float16 else 0.0)


@part
def _offset_bits(dtype: tl.constexpr) -> int:
    """Those of two of it."""
    return 0x43004300 if dtype == tl.bfloat16 else 0x64006400


@part
def _four_bits(words: tl.tensor, LANE: tl.constexpr, ODD: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """The codes of one output of each word and of its even or odd inputs, the type's offset added. Exact."""
    if dtype == tl.float32:
        codes = ((words >> (8 * LANE + 4 * ODD)) & 15).to(dtype)
    else:
        # Of two outputs at once, 16 bits apart. A conversion would take four times as long.
        codes = _half_of(((words >> (8 * (LANE % 2) + 4 * ODD)) & 0x000F000F) | _offset_bits(dtype), LANE >= 2, dtype)
    return codes


@part
def _eight_bits(words: tl.tensor, LANE: tl.constexpr, dtype: tl.constexpr) -> tl.tensor:
    """The codes of one output of each word, exactly: as the last bits of 2^23, the sign turned into an offset."""
    bits = ((words >> (8 * LANE)) & 0xFF) ^ 0x4B000080
    return (bits.to(tl.float32, bitcast=True) - 8388736.0).to(dtype)


@part
def _load_factors(ptr: tl.tensor, place: tl.tensor, known: tl.tensor, factor: tl.constexpr) -> Any:
    """Of the four outputs of each word, as they lie; see `_factor`."""
    if factor == tl.float32:
        low = tl.load(ptr + place * 2, mask=known, other=0)
        high = tl.load(ptr + place * 2 + 1, mask=known, other=0)
    else:
        low = tl.load(ptr + place, mask=known, other=0)
        high = low >> 32
    return low, high


@part
def _factor(pair: tl.tensor, HIGH: tl.constexpr, factor: tl.constexpr) -> tl.tensor:
    """[WORDS, 1] float32, of one output of each word."""
    return _half_of(pair, HIGH, factor).to(tl.float32)[:, None]


@part
def _add_output(
    acc: tl.tensor,  # [WORDS, ROWS] of one output of each word
    words: tl.tensor,  # [WORDS, CODES]
    x: tl.tensor,  # [CODES, ROWS] the even inputs, or all
    odd: tl.tensor,
    total: tl.tensor,  # [WORDS, ROWS] the sums of each row's inputs
    scales: tl.tensor,
    minimums: tl.tensor,
    LANE: tl.constexpr,
    FOUR_BITS: tl.constexpr,
    dtype: tl.constexpr,
    factor: tl.constexpr,
) -> tl.tensor:
    scale = _factor(scales, LANE % 2, factor)
    if FOUR_BITS:
        part = tl.dot(_four_bits(words, LANE, 0, dtype), x, input_precision="ieee")
        part = tl.dot(_four_bits(words, LANE, 1, dtype), odd, part, input_precision="ieee")
        acc = acc + part * scale + total * (_factor(minimums, LANE % 2, factor) - scale * _offset(dtype))
    else:
        acc = acc + tl.dot(_eight_bits(words, LANE, dtype), x, input_precision="ieee") * scale
    return acc


@triton.jit(do_not_specialize=["rows"])
def _quantized_matmul_kernel(
    parts_ptr: tl.tensor,  # [splits, rows, outputs]
    x_ptr: tl.tensor,  # [rows, inputs], with 4 bits in words of two
    codes_ptr: tl.tensor,  # [tiles, CHUNKS, CODES, 4] words of four outputs
    scales_ptr: tl.tensor,  # [tiles, GROUPS, 4] words of four outputs, or 8 of two
    minimums_ptr: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    outputs: tl.tensor,
    CHUNKS: tl.constexpr,
    CHUNKS_A_GROUP: tl.constexpr,
    CHUNKS_A_SPLIT: tl.constexpr,
    FOUR_BITS: tl.constexpr,
    dtype: tl.constexpr,
    factor: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    CODES: tl.constexpr,
    UNROLL: tl.constexpr,
) -> None:
    GROUPS: tl.constexpr = CHUNKS // CHUNKS_A_GROUP
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    word = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    split = tl.program_id(2)
    there = (row < rows)[None, :]
    tile, place = (word // _WORDS_A_TILE).to(tl.int64), word % _WORDS_A_TILE
    known = word < (outputs + _LANES - 1) // _LANES * _WORDS_A_TILE
    k = tl.arange(0, CODES)
    x_place = x_ptr + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    code_place = codes_ptr + (tile * CHUNKS * CODES * _WORDS_A_TILE + place)[:, None] + (k * _WORDS_A_TILE)[None, :]
    factor_place = tile * GROUPS * _WORDS_A_TILE + place
    ones = tl.full([WORDS, CODES], 1.0, dtype)
    acc0 = tl.zeros([WORDS, ROWS], tl.float32)
    acc1, acc2, acc3 = acc0, acc0, acc0
    first = split * CHUNKS_A_SPLIT
    for chunk in tl.range(first, tl.minimum(first + CHUNKS_A_SPLIT, CHUNKS), loop_unroll_factor=UNROLL):
        words = tl.load(code_place + chunk * CODES * _WORDS_A_TILE, mask=known[:, None], other=0)
        factors = factor_place + chunk // CHUNKS_A_GROUP * _WORDS_A_TILE
        scales = _load_factors(scales_ptr, factors, known, factor)
        x = tl.load(x_place + chunk * CODES, mask=there, other=0)
        odd, total, minimums = x, acc0, scales
        if FOUR_BITS:
            minimums = _load_factors(minimums_ptr, factors, known, factor)
            x, odd = _half_of(x, False, dtype), _half_of(x, True, dtype)
            # Summed by the matrix unit, each row's total lies where its products do.
            total = tl.dot(ones, odd, tl.dot(ones, x, input_precision="ieee"), input_precision="ieee")
        more = (words, x, odd, total)
        acc0 = _add_output(acc0, *more, scales[0], minimums[0], 0, FOUR_BITS, dtype, factor)
        acc1 = _add_output(acc1, *more, scales[0], minimums[0], 1, FOUR_BITS, dtype, factor)
        acc2 = _add_output(acc2, *more, scales[1], minimums[1], 2, FOUR_BITS, dtype, factor)
        acc3 = _add_output(acc3, *more, scales[1], minimums[1], 3, FOUR_BITS, dtype, factor)
    place = (split.to(tl.int64) * rows + row)[None, :] * outputs + word[:, None] * 4
    left = tl.where(there, outputs - word[:, None] * 4, 0)  # outputs of a word that are there
    tl.store(parts_ptr + place, acc0, mask=left > 0)
    tl.store(parts_ptr + place + 1, acc1, mask=left > 1)
    tl.store(parts_ptr + place + 2, acc2, mask=left > 2)
    tl.store(parts_ptr + place + 3, acc3, mask=left > 3)


def quantized_matmul(x: Tensor, weight: QuantizedWeight) -> Tensor:
    """x: [rows, inputs] bfloat16, float16 or float32; its rows may lie apart, by an even number of elements. Returns
    [rows, outputs] of its type.
    """
    _check(x, weight)
    rows, inputs = x.shape
    four_bits = weight.codes.dtype == torch.uint8
    if rows == 0:
        return x.new_empty(0, weight.outputs)
    chunk = _chunk_of(weight, x.dtype)
    splits = splits_of(weight.outputs, inputs, block_outputs=4 * _WORDS, split_inputs=SPLIT_INPUTS)
    parts = torch.empty(splits, rows, weight.outputs, device=x.device)
    words_of_x = x.view(torch.int64 if x.dtype == torch.float32 else torch.int32) if four_bits else x
    scales = weight.scales.flatten().view(torch.int64)
    grid = (triton.cdiv(weight.outputs, 4 * _WORDS), triton.cdiv(rows, _ROWS), splits)
    on_device(x.device, _quantized_matmul_kernel, grid)(
        *(parts, words_of_x, weight.codes.flatten().view(torch.int32)),
        *(scales, scales if weight.minimums is None else weight.minimums.flatten().view(torch.int64)),
        *(rows, words_of_x.stride(0), weight.outputs),
        CHUNKS=inputs // chunk,
        CHUNKS_A_GROUP=weight.group // chunk,
        CHUNKS_A_SPLIT=triton.cdiv(inputs // chunk, splits),
        FOUR_BITS=four_bits,
        dtype=_TYPES[x.dtype],
        factor=_TYPES[weight.scales.dtype],
        ROWS=_ROWS,
        WORDS=_WORDS,
        CODES=chunk // 2 if four_bits else chunk,
        UNROLL=2 if chunk == _CHUNK_MIN else 1,  # else a third of the instructions are the loop's
        num_warps=_WARPS,
        num_stages=_STAGES,
    )
    return sum_splits(parts, x.dtype)


def _check(x: Tensor, weight: QuantizedWeight) -> None:
    weight.check()
    expect("x", x, (None, weight.inputs), FLOAT_TYPES, weight.codes.device, strided=True)
    expect_that("x", x.stride(0) % 2 == x.storage_offset() % 2 == 0, "rows an even number of elements apart")
    expect_that("weight", weight.group % _CHUNK_MIN == 0, f"groups of a multiple of {_CHUNK_MIN} inputs")


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
