"""The common part of the attention kernels: one tile of keys and values, read through the block table and accumulated.

Source: online softmax of FlashAttention-2 (Dao, arXiv 2307.08691).

Owns the parts of kernels, which compile into each of them; launches nothing. Knows no grid.

Invariants. A slot that no row may see is never multiplied with anything: unwritten slots hold NaN, and 0 * NaN is NaN.
Offsets into the pool and its scales are 64 bits wide: a block id times its stride passes 2^31 elements in a pool of a
few GiB. Scores are in units of log2, so that exp2 needs no factor.
"""

from typing import Any

import triton.language as tl

from kernels.part import part
from kernels.quantized_kv import widen


@part
def attend(
    q: tl.tensor,  # [ROWS, HEAD_DIM_PADDED]
    position: tl.tensor,  # [ROWS] of each row's token in its sequence
    first_key: tl.tensor,
    key_end: tl.tensor,  # keys from here on are not there
    table_ptr: tl.tensor,  # [blocks_max] of this sequence
    k_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    v_cache_ptr: tl.tensor,
    k_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads], of a quantized pool
    v_scale_ptr: tl.tensor,
    kv_head: tl.tensor,
    cache_block_stride: tl.tensor,
    cache_slot_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    scale_log2: tl.tensor,
    cap_log2: tl.tensor,
    window: tl.tensor,
    maximum: tl.tensor,  # [ROWS] so far; these three are returned, one tile further
    total: tl.tensor,  # [ROWS]
    acc: tl.tensor,  # [ROWS, HEAD_DIM_PADDED]
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    KV: tl.constexpr,
    NATIVE_FP8: tl.constexpr,
) -> Any:
    d = tl.arange(0, HEAD_DIM_PADDED)
    key = first_key + tl.arange(0, KEYS)
    key_mask = key < key_end
    kv_mask = key_mask[:, None]
    if HEAD_DIM != HEAD_DIM_PADDED:
        kv_mask = kv_mask & (d < HEAD_DIM)[None, :]
    block = tl.load(table_ptr + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)
    place = block * cache_block_stride + (key % BLOCK_SIZE) * cache_slot_stride + kv_head * cache_head_stride
    offset = place[:, None] + d[None, :]
    k = tl.load(k_cache_ptr + offset, mask=kv_mask, other=0.0)
    v = tl.load(v_cache_ptr + offset, mask=kv_mask, other=0.0)
    if KV != "model":
        k = widen(k, q.dtype, KV, NATIVE_FP8)
        v = widen(v, q.dtype, KV, NATIVE_FP8)
    scale_offset = (block * BLOCK_SIZE + key % BLOCK_SIZE) * KV_HEADS + kv_head
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if KV != "model":
        scores = scores * tl.load(k_scale_ptr + scale_offset, mask=key_mask, other=0.0)[None, :]
    if CAPPED:
        # tanh(x) = 1 - 2 / (exp(2 x) + 1): the exponential may overflow to infinity, and the result is still right.
        scores = cap_log2 * (1.0 - 2.0 / (tl.exp2(scores * (2.8853900817779268 / cap_log2)) + 1.0))
    seen = key[None, :] <= position[:, None]
    if WINDOWED:
        seen = seen & (key[None, :] > position[:, None] - window)
    scores = tl.where(seen, scores, float("-inf"))

    maximum_next = tl.maximum(maximum, tl.max(scores, axis=1))
    finite = maximum_next
    if WINDOWED:
        # A row whose window begins in a later tile sees nothing of this one, and -inf - -inf is NaN. Without a window
        # every row sees the first key of its first tile, so that the maximum is finite from there on.
        finite = tl.where(maximum_next == float("-inf"), 0.0, maximum_next)
    weights = tl.exp2(scores - finite[:, None])
    decay = tl.exp2(maximum - finite)
    total = total * decay + tl.sum(weights, axis=1)
    if KV == "model":
        acc = acc * decay[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee")
    else:
        # The scales of V go into the weights, relative to the largest of the tile: float16 would lose small ones.
        v_scale = tl.load(v_scale_ptr + scale_offset, mask=key_mask, other=0.0)
        v_scale_max = tl.max(v_scale, axis=0)
        weights = weights * (v_scale / tl.where(v_scale_max > 0.0, v_scale_max, 1.0))[None, :]
        acc = acc * decay[:, None] + tl.dot(weights.to(q.dtype), v, input_precision="ieee") * v_scale_max
    return maximum_next, total, acc
