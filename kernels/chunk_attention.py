"""Attention of sequences with several queries: prompts, and chunks of prompts.

    out[q] = sum over keys k <= q (and > q - window) of softmax(scale * Q[q] K[k]) V[k]

    |<---------- context ---------->|        rows of a tile: ROWS // GROUP query tokens x the GROUP query heads
    | prefix (in the pool) |  query |        that share a KV head, so that K and V are read once for all of them
                              ^ first_token of this tile

Owns the kernel and its launch. A sequence with one query, or none, is left out.

Invariants. The grid follows from tensor shapes alone, so nothing waits for the device: it is an upper bound, and each
program finds its sequence itself. Tiles are counted from the first query of a sequence and keys are taken in tiles of
one fixed size, so a row's result does not depend on the rest of the batch; how a prompt is cut into chunks decides
only which row of a tile a token gets.

Roofline of a prompt of n tokens, H heads of D: 2 n^2 H D FLOPs (the half that is seen of 4 n^2 H D); of bytes, each
tile of ROWS // GROUP tokens reads what it sees of K and V, n^2 GROUP / ROWS G D b in all, mostly from the L2 cache:
2 ROWS / b FLOPs a byte, 64 with 64 rows of bfloat16. Llama-3.1-8B, 8,192 tokens of a layer: 0.55 TFLOP, 0.7 ms at an
H200's 790 TFLOP/s; 34 MB of K and V, read once, take 8 us.
"""

from typing import Any

import triton
import triton.language as tl

from kernels.attention_call import AttentionCall
from kernels.attention_launches import launches_of
from kernels.attention_table import Tile
from kernels.attention_tile import attend
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.part import part


@part
def _find_sequence(query_start_ptr: tl.tensor, tile: tl.tensor, sequences: tl.tensor, TOKENS: tl.constexpr) -> Any:
    """The last sequence whose first tile, `query_start // TOKENS + index`, is not after `tile`."""
    low = 0
    high = sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(query_start_ptr + middle) // TOKENS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


# The counts below change with every batch. Specialised, a value of 1 or a multiple of 16 would compile anew, seconds
# in the middle of serving.
@triton.jit(do_not_specialize=["sequences", "table_stride", "window"])
def _chunk_attention_kernel(
    out_ptr: tl.tensor,  # [tokens, heads, head_dim]
    q_ptr: tl.tensor,  # [tokens, heads, head_dim]
    k_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    v_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    k_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads], of a quantized pool
    v_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads]
    block_tables_ptr: tl.tensor,  # [sequences, blocks_max]
    query_start_ptr: tl.tensor,  # [sequences + 1]
    context_lens_ptr: tl.tensor,  # [sequences]
    sequences: tl.tensor,
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
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KV: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
) -> None:
    TOKENS: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start_ptr, tile, sequences, TOKENS)
    query_first = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - query_first
    first_token = (tile - query_first // TOKENS - sequence) * TOKENS
    if (first_token >= query_len) | (query_len == 1):
        return

    rows = tl.arange(0, ROWS)
    d = tl.arange(0, HEAD_DIM_PADDED)
    token = first_token + rows // GROUP
    head = kv_head * GROUP + rows % GROUP
    # ROWS need not be a multiple of GROUP: the rows left over belong to the next tile's first token.
    row_mask = (token < query_len) & (rows < TOKENS * GROUP)
    packed = (query_first + token).to(tl.int64)
    q_mask = row_mask[:, None] & (d < HEAD_DIM)[None, :]
    q_offset = packed[:, None] * q_token_stride + head[:, None] * q_head_stride + d[None, :]
    q = tl.load(q_ptr + q_offset, mask=q_mask, other=0.0)

    prefix = tl.load(context_lens_ptr + sequence) - query_len
    visible = prefix + tl.minimum(first_token + TOKENS, query_len)  # keys that the last row of this tile sees
    position = prefix + token
    table = block_tables_ptr + sequence.to(tl.int64) * table_stride
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
    first_visible = 0
    if WINDOWED:  # whole tiles before what the first row of this tile sees are never read
        first_visible = tl.maximum(prefix + first_token - window + 1, 0) // KEYS * KEYS
    for first_key in range(first_visible, visible, KEYS):
        maximum, total, acc = attend(
            *(q, position, first_key, visible, table),
            *(k_cache_ptr, v_cache_ptr, k_scale_ptr, v_scale_ptr),
            *(kv_head, cache_block_stride, cache_slot_stride, cache_head_stride),
            *(scale_log2, cap_log2, window),
            *(maximum, total, acc),
            *(KV_HEADS, HEAD_DIM, HEAD_DIM_PADDED, BLOCK_SIZE, KEYS, WINDOWED, CAPPED, KV, NATIVE_FP8),
        )
    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_offset = packed[:, None] * out_token_stride + head[:, None] * out_head_stride + d[None, :]
    tl.store(out_ptr + out_offset, out, mask=q_mask)


def chunk_attention(call: AttentionCall, tile: Tile) -> None:
    """Writes the rows of `call.out` whose sequence has several queries."""
    # Each sequence may end in a tile that is not full: at most one more than its share of the packed tiles.
    tiles = call.q.shape[0] // (call.rows(tile) // call.group) + call.sequences
    on_device(call.q.device, _chunk_attention_kernel, (tiles, call.q.shape[1] // call.group))(
        call.out, *call.tensors(), call.sequences, *call.numbers(), **call.constants(tile)
    )


def launches(architecture: str) -> list[Launch]:
    """See `Launch`."""
    return launches_of(architecture, "chunk", lambda row: row.chunk, chunk_attention)
