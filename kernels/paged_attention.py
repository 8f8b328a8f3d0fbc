"""Causal attention of packed queries over a paged KV pool: prefill, chunks and decode in one kernel.

Source: online softmax of FlashAttention-2 (Dao, arXiv 2307.08691) over block tables as in PagedAttention (Kwon et al.,
arXiv 2309.06180), with the query heads of one KV head packed into the rows of a tile.

    |<---------- context ---------->|        rows of a tile: ROWS // GROUP query tokens x the GROUP query heads
    | prefix (in the pool) |  query |        that share a KV head, so that K and V are read once for all of them
                              ^ first_token of this tile

Owns the kernel and its launcher. Knows nothing of who holds which block.

Invariants. The grid follows from tensor shapes alone, so nothing waits for the device: it is an upper bound, and each
program finds its sequence itself. Tiles are counted from the first query of a sequence and keys are taken in tiles of
one fixed size, so a row's result does not depend on the rest of the batch; how a prompt is cut into chunks decides
only which row of a tile a token gets.
A sequence without context (a padded row) yields zeros.
"""

import math
from typing import Any, cast

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention_scratch import AttentionScratch

_ROWS_MIN = 16  # the smallest side that tl.dot takes
_KEYS = 32


@triton.jit
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
@triton.jit(do_not_specialize=["sequences", "table_stride"])
def _paged_attention_kernel(
    out_ptr: tl.tensor,  # [tokens, heads, head_dim]
    q_ptr: tl.tensor,  # [tokens, heads, head_dim]
    k_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    v_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    block_tables_ptr: tl.tensor,  # [sequences, blocks_max]
    query_start_ptr: tl.tensor,  # [sequences + 1]
    context_lens_ptr: tl.tensor,  # [sequences]
    scale_log2: tl.tensor,
    sequences: tl.tensor,
    table_stride: tl.tensor,
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    out_token_stride: tl.tensor,
    out_head_stride: tl.tensor,
    cache_block_stride: tl.tensor,
    cache_slot_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    window: tl.tensor,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    HEAD_DIM_PADDED: tl.constexpr,
    WINDOWED: tl.constexpr,
) -> None:
    TOKENS: tl.constexpr = ROWS // GROUP
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    sequence = _find_sequence(query_start_ptr, tile, sequences, TOKENS)
    query_first = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - query_first
    first_token = (tile - query_first // TOKENS - sequence) * TOKENS
    if first_token >= query_len:
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
    head_offset = kv_head * cache_head_stride + d
    maximum = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, HEAD_DIM_PADDED], tl.float32)
    first_visible = 0
    if WINDOWED:  # whole tiles before what the first row of this tile sees are never read
        first_visible = tl.maximum(prefix + first_token - window + 1, 0) // KEYS * KEYS
    for first_key in range(first_visible, visible, KEYS):
        key = first_key + tl.arange(0, KEYS)
        key_mask = key < visible
        # A block id times its stride passes 2^31 elements in a pool of a few GiB.
        block = tl.load(table + key // BLOCK_SIZE, mask=key_mask, other=0).to(tl.int64)
        slot_offset = block * cache_block_stride + (key % BLOCK_SIZE) * cache_slot_stride
        kv_offset = slot_offset[:, None] + head_offset[None, :]
        # Slots past the context may hold NaN, and 0 * NaN is NaN: they are masked here, not by their weights.
        kv_mask = key_mask[:, None] & (d < HEAD_DIM)[None, :]
        k = tl.load(k_cache_ptr + kv_offset, mask=kv_mask, other=0.0)
        v = tl.load(v_cache_ptr + kv_offset, mask=kv_mask, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        seen = key[None, :] <= position[:, None]
        if WINDOWED:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        maximum, total, acc = _add_tile(scores, v, maximum, total, acc, WINDOWED)

    out = acc / tl.where(total == 0.0, 1.0, total)[:, None]
    out_offset = packed[:, None] * out_token_stride + head[:, None] * out_head_stride + d[None, :]
    tl.store(out_ptr + out_offset, out, mask=q_mask)


@triton.jit
def _add_tile(
    scores: tl.tensor, v: tl.tensor, maximum: tl.tensor, total: tl.tensor, acc: tl.tensor, WINDOWED: tl.constexpr
) -> Any:
    """One step of the online softmax: scores [ROWS, KEYS], -inf where a row does not see a key; v [KEYS, HEAD_DIM]."""
    maximum_next = tl.maximum(maximum, tl.max(scores, axis=1))
    offset = maximum_next
    if WINDOWED:
        # A row whose window begins in a later tile sees nothing of this one, and -inf - -inf is NaN. Without a window
        # every row sees key 0, so that the maximum is finite from the first tile on.
        offset = tl.where(maximum_next == float("-inf"), 0.0, maximum_next)
    weights = tl.exp2(scores - offset[:, None])
    decay = tl.exp2(maximum - offset)
    total = total * decay + tl.sum(weights, axis=1)
    acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return maximum_next, total, acc


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    block_tables: Tensor,
    query_start: Tensor,
    context_lens: Tensor,
    scale: float,
    window: int | None,
    soft_cap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    scratch: AttentionScratch | None = None,  # noqa: ARG001  for the split of long contexts, which comes next
    queries_max: int | None = None,  # noqa: ARG001
) -> Tensor:
    """See `Ops.paged_attention`. q, the caches and the rows of block_tables may be strided views."""
    tokens, heads, head_dim = q.shape
    block_size, kv_heads = k_cache.shape[1:3]
    sequences = context_lens.shape[0]
    assert soft_cap is None
    assert k_scale is None
    assert v_scale is None
    _check(q, k_cache, v_cache, block_tables, query_start, window)
    out = q.new_empty(q.shape)
    if tokens == 0:
        return out
    group = heads // kv_heads
    rows = max(_ROWS_MIN, triton.next_power_of_2(group))
    # Each sequence may end in a tile that is not full: at most one more than its share of the packed tiles.
    tiles = tokens // (rows // group) + sequences
    cast("Any", _paged_attention_kernel)[(tiles, kv_heads)](
        out,
        q,
        k_cache,
        v_cache,
        block_tables,
        query_start,
        context_lens,
        scale * math.log2(math.e),
        sequences,
        block_tables.stride(0),
        *q.stride()[:2],
        *out.stride()[:2],
        *k_cache.stride()[:3],
        window or 0,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ROWS=rows,
        KEYS=_KEYS,
        HEAD_DIM_PADDED=max(16, triton.next_power_of_2(head_dim)),
        WINDOWED=window is not None,
        enable_fp_fusion=True,
    )
    return out


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_tables: Tensor, query_start: Tensor, window: int | None
) -> None:
    assert q.shape[1] % k_cache.shape[2] == 0
    assert q.shape[2] == k_cache.shape[3]
    assert k_cache.shape == v_cache.shape
    assert k_cache.stride() == v_cache.stride()
    assert window is None or window > 0
    assert q.dtype == k_cache.dtype == v_cache.dtype
    assert q.stride(2) == k_cache.stride(3) == block_tables.stride(1) == 1
    assert query_start.shape[0] == block_tables.shape[0] + 1
    assert query_start.is_contiguous()
