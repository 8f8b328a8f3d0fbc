"""Attention of sequences with one query, their keys split among programs, and the sum over the splits.

Source: Flash-Decoding (Dao et al., 2023), with splits of one fixed length.

    part[s]   = sum over k in split s of softmax(scale * Q K[k]) V[k]        weight[s] = sum of exp(scale * Q K[k])
    out       = sum over splits of weight[s] / (sum of all weights) * part[s]

    keys     |0 .. 511|512 .. 1023|1024 .. 1299|       each split's sum, by itself, into the scratch; then the reduce
    program      0          1           2              kernel adds them up, in order, and rounds once
    or           0          1           0              (with two programs for the sequence)

Owns both kernels and their launch. Which program takes which split depends on the batch; what a split gives, and the
order in which splits are added, does not: a sequence's result is the same bits alone and among 256.
A sequence with several queries, or with none, is left out. One without context (a padded row) yields zeros.

Roofline of a decode, H heads, G KV heads of D, n keys, b bytes a number: 2 n G D b bytes (and 8 n G of scales when
quantized), 4 n H D FLOPs, 2 H / (G b) FLOPs a byte: 4 for Llama-3.1-8B in bfloat16, where an H200 could do 180. So the
memory decides: 64k keys of a layer are 268 MB, 62 us at 4.3 TB/s. The splits add 4 (D + 1) bytes of float32 twice for
each 512 keys and head: 2 x 4 (D + 1) H / (512 x 2 G D b), 1.6 % of it.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from kernels.arguments import expect, expect_that
from kernels.attention_call import AttentionCall
from kernels.attention_launches import launches_of
from kernels.attention_scratch import SPLIT_KEYS, AttentionScratch, splits
from kernels.attention_table import Tile
from kernels.attention_tile import attend
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.part import part

_PARTS = 16  # splits that the reduce kernel adds at once
_PROGRAMS = 4096  # enough for every SM of a large chip, several times over
_PROGRAMS_EACH_MIN = 4  # for one long sequence among many short ones


# The counts change with every batch. Specialised, a value of 1 or a multiple of 16 would compile anew, seconds in the
# middle of serving.
@triton.jit(do_not_specialize=["table_stride", "splits_max", "window"])
def _split_attention_kernel(
    out_ptr: tl.tensor,  # [tokens, heads, head_dim]
    part_ptr: tl.tensor,  # [sequences, heads, splits_max, head_dim]
    weight_ptr: tl.tensor,  # [sequences, heads, splits_max]
    q_ptr: tl.tensor,  # [tokens, heads, head_dim]
    k_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    v_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    k_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads]
    v_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads]
    block_tables_ptr: tl.tensor,  # [sequences, blocks_max]
    query_start_ptr: tl.tensor,  # [sequences + 1]
    context_lens_ptr: tl.tensor,  # [sequences]
    splits_max: tl.tensor,
    scale_log2: tl.tensor,
    cap_log2: tl.tensor,
    window: tl.tensor,
    table_stride: tl.tensor,
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    out_token_stride: tl.tensor,
    out_head_stride: tl.tensor,
    cache_block_stride: tl.tensor,
    cache_slot_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KV: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
) -> None:
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    token = tl.load(query_start_ptr + sequence).to(tl.int64)
    if tl.load(query_start_ptr + sequence + 1) - token != 1:
        return
    context = tl.load(context_lens_ptr + sequence)
    first_key, first_split, split_end = _range_of_splits(context, window, SPLIT, WINDOWED)

    rows = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM_PADDED)
    head = kv_head * GROUP + rows
    mask = (rows < GROUP)[:, None] & (d < HEAD_DIM)[None, :]
    q_offset = token * q_token_stride + head[:, None] * q_head_stride + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=mask, other=0.0)
    position = tl.zeros([ROWS], tl.int32) + context - 1
    for split in range(first_split + tl.program_id(2), split_end, tl.num_programs(2)):
        maximum = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        acc = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
        key_end = tl.minimum((split + 1) * SPLIT, context)
        for key in range(tl.maximum(split * SPLIT, first_key // KEYS * KEYS), key_end, KEYS):
            maximum, total, acc = attend(
                *(q, position, key, key_end, block_tables_ptr + sequence * table_stride),
                *(k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr),
                *(kv_head, cache_block_stride, cache_slot_stride, cache_head_stride),
                *(scale_log2, cap_log2, window),
                *(maximum, total, acc),
                *(KV_HEADS, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, KEYS, WINDOWED, CAPPED, KV, NATIVE_FP8),
            )
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        if split_end - first_split == 1:
            out_offset = token * out_token_stride + head[:, None] * out_head_stride + d[None, :]
            tl.store(out_ptr + out_offset, result, mask=mask)
        else:
            part = (sequence * (KV_HEADS * GROUP) + head) * splits_max + split
            tl.store(part_ptr + part[:, None] * HEAD_DIM + d[None, :], result, mask=mask)
            tl.store(weight_ptr + part, maximum + tl.log2(total), mask=rows < GROUP)


@part
def _range_of_splits(context: tl.tensor, window: tl.tensor, SPLIT: tl.constexpr, WINDOWED: tl.constexpr) -> Any:
    """The first key that is seen, its split, and the end of the splits, of which there is at least one."""
    first_key = context * 0
    if WINDOWED:
        first_key = tl.maximum(context - window, 0)
    return first_key, first_key // SPLIT, (tl.maximum(context, 1) + SPLIT - 1) // SPLIT


@triton.jit(do_not_specialize=["splits_max", "window"])
def _reduce_splits_kernel(
    out_ptr: tl.tensor,  # [tokens, heads, head_dim]
    part_ptr: tl.tensor,  # [sequences, heads, splits_max, head_dim]
    weight_ptr: tl.tensor,  # [sequences, heads, splits_max]
    query_start_ptr: tl.tensor,  # [sequences + 1]
    context_lens_ptr: tl.tensor,  # [sequences]
    splits_max: tl.tensor,
    out_token_stride: tl.tensor,
    out_head_stride: tl.tensor,
    window: tl.tensor,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    SPLIT: tl.constexpr,
    PARTS: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> None:
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    token = tl.load(query_start_ptr + sequence).to(tl.int64)
    if tl.load(query_start_ptr + sequence + 1) - token != 1:
        return
    context = tl.load(context_lens_ptr + sequence)
    _, first_split, split_end = _range_of_splits(context, window, SPLIT, WINDOWED)
    if split_end - first_split == 1:
        return  # it is in `out` already
    d = tl.arange(0, HEAD_DIM_PADDED)
    row = (sequence * HEADS + head) * splits_max
    maximum = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    acc = tl.zeros([HEAD_DIM_PADDED], tl.float32)
    for first in range(first_split, split_end, PARTS):
        split = first + tl.arange(0, PARTS)
        weight = tl.load(weight_ptr + row + split, mask=split < split_end, other=float("-inf"))
        # Unwritten scratch may be NaN, so it is masked: a weight of 0 would not suffice.
        mask = (split < split_end)[:, None] & (d < HEAD_DIM)[None, :]
        part = tl.load(part_ptr + (row + split)[:, None] * HEAD_DIM + d[None, :], mask=mask, other=0.0)
        maximum_next = tl.maximum(maximum, tl.max(weight, axis=0))
        decay = tl.exp2(maximum - maximum_next)
        share = tl.exp2(weight - maximum_next)
        total = total * decay + tl.sum(share, axis=0)
        acc = acc * decay + tl.sum(share[:, None] * part, axis=0)
        maximum = maximum_next
    tl.store(out_ptr + token * out_token_stride + head * out_head_stride + d, acc / total, mask=d < HEAD_DIM)


def programs_each(sequences: int, kv_heads: int) -> int:
    """How many programs share the splits of one sequence and KV head. Does not affect the result."""
    return max(_PROGRAMS_EACH_MIN, -(-_PROGRAMS // (sequences * kv_heads)))


def split_attention(call: AttentionCall, tile: Tile, scratch: AttentionScratch | None, programs: int) -> None:
    """Writes the rows of `call.out` that are the one query of their sequence. programs: see `programs_each`."""
    sequences, heads, head_dim = call.sequences, call.q.shape[1], call.q.shape[2]
    context_max = call.block_tables.shape[1] * call.k_cache.shape[1]
    needed = splits(context_max)
    scratch = scratch or AttentionScratch.of(sequences, context_max, heads, head_dim, call.q.device)
    _check(scratch, call, needed)
    splits_max = scratch.out.shape[2]
    on_device(call.q.device, _split_attention_kernel, (sequences, heads // call.group, min(needed, programs)))(
        call.out,
        scratch.out,
        scratch.weight_log2,
        *call.tensors(),
        splits_max,
        *call.numbers(),
        **call.constants(tile),
        SPLIT=SPLIT_KEYS,
    )
    if needed > 1:
        reduce_splits(call, scratch)


def reduce_splits(call: AttentionCall, scratch: AttentionScratch) -> None:
    """Writes the rows of `call.out` whose sequence has one query and sees several splits, from the scratch."""
    _, heads, splits_max, head_dim = scratch.out.shape
    on_device(call.q.device, _reduce_splits_kernel, (call.sequences, heads))(
        call.out,
        scratch.out,
        scratch.weight_log2,
        call.query_start,
        call.context_lens,
        splits_max,
        *call.out.stride()[:2],
        call.window or 0,
        HEADS=heads,
        HEAD_DIM=head_dim,
        HEAD_DIM_PADDED=call.head_dim_padded,
        SPLIT=SPLIT_KEYS,
        PARTS=_PARTS,
        WINDOWED=call.window is not None,
        enable_fp_fusion=True,
    )


def _check(scratch: AttentionScratch, call: AttentionCall, needed: int) -> None:
    (heads, head_dim), device = call.q.shape[1:], call.q.device
    expect("scratch.out", scratch.out, (None, heads, None, head_dim), torch.float32, device)
    expect("scratch.weight_log2", scratch.weight_log2, scratch.out.shape[:3], torch.float32, device)
    sequences_max, _, splits_max, _ = scratch.out.shape
    large_enough = sequences_max >= call.sequences and splits_max >= needed
    expect_that("scratch", large_enough, f"{call.sequences} sequences of {needed} splits or more")


def launches(architecture: str) -> list[Launch]:
    """See `Launch`."""
    return launches_of(
        architecture, "decode", lambda row: row.decode, lambda call, tile: split_attention(call, tile, None, 1)
    )
