"""Attention of several queries of one sequence on a CPU: prompts and chunks of them, compiled for this processor.

The keys and values that any of the queries sees are copied out of the pool once, into the tiles that `packed_matmul`
multiplies from, so both products run at the speed of matrix products:

    keys    [kv_heads, tiles of 16 keys, groups of 32 of head_dim, 32, 16]
    values  [kv_heads, tiles of 16 of head_dim, groups of 32 keys, 32, 16]

A thread takes a few queries of one KV head, with all heads of its group, and no key after the last of them.

Invariant: a query's sums run over head_dim, and over its keys, in their order, whoever is computed beside it; what it
does not see counts with a weight of zero. What lies beyond the context is never read.
"""

from typing import Any

import numpy as np
from numba import njit, prange

from kernels.cpu_loops import FAST, softmax_row
from kernels.packed_matmul import ROWS_WIDE, all_wide
from kernels.vector_code import GROUP, LANES

ROWS = 24  # queries times heads at a time: enough for fast products, while their scores stay in the cache
ZERO = np.float32(0.0)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _copy_keys(pool: Any, table: Any, head: Any, place: Any, count: Any, tiles: Any, tile: Any) -> None:
    """`count` keys from `place` on as one tile; zeros beyond them."""
    block_size, head_dim = pool.shape[1], pool.shape[3]
    for lane in range(LANES):
        if lane < count:
            key = pool[table[(place + lane) // block_size], (place + lane) % block_size, head]
            for i in range(head_dim):
                tiles[tile, i // GROUP, i % GROUP, lane] = key[i]
        first = head_dim if lane < count else 0
        for i in range(first, tiles.shape[1] * GROUP):
            tiles[tile, i // GROUP, i % GROUP, lane] = ZERO


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _copy_values(pool: Any, table: Any, head: Any, place: Any, count: Any, tiles: Any, group: Any) -> None:
    """The same of values, as one group."""
    block_size, head_dim = pool.shape[1], pool.shape[3]
    for seen in range(GROUP):
        if seen < count:
            value = pool[table[(place + seen) // block_size], (place + seen) % block_size, head]
            for i in range(head_dim):
                tiles[i // LANES, group, seen, i % LANES] = value[i]
        first = head_dim if seen < count else 0
        for i in range(first, tiles.shape[0] * LANES):
            tiles[i // LANES, group, seen, i % LANES] = ZERO


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _weigh(scores: Any, before: Any, group: Any, window: Any) -> None:
    """Scores [queries * group, keys] to weights in place: zeros for what a query does not see."""
    for row in range(scores.shape[0]):
        end = before + row // group + 1
        first = max(0, end - window) if window > 0 else 0
        scores[row, :first] = ZERO
        scores[row, end:] = ZERO
        total = softmax_row(scores[row, first:end])
        for seen in range(first, end):
            scores[row, seen] /= total


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _attend(q: Any, head: Any, keys: Any, values: Any, before: Any, window: Any, scale: Any, out: Any) -> None:
    """q, out: [queries, heads, head_dim]. before: of the keys, those that come before the first query's own."""
    group, head_dim = q.shape[1] // keys.shape[0], q.shape[2]
    groups = (before + q.shape[0] + GROUP - 1) // GROUP
    count = q.shape[0] * group
    padded = (count + ROWS_WIDE - 1) // ROWS_WIDE * ROWS_WIDE
    rows = np.zeros((padded, keys.shape[2] * GROUP), np.float32)
    scores = np.empty((padded, groups * GROUP), np.float32)
    attended = np.empty((padded, values.shape[1] * LANES), np.float32)
    for row in range(count):
        query, first = q[row // group], head * group
        for i in range(head_dim):
            rows[row, i] = query[first + row % group, i] * scale
    for tile in range(groups * GROUP // LANES):
        all_wide(rows, keys[head], scores, tile, tile)
    _weigh(scores[:count], before, group, window)
    for tile in range(values.shape[1]):
        all_wide(scores, values[head], attended, tile, tile)
    for row in range(count):
        result, first = out[row // group], head * group
        for i in range(head_dim):
            result[first + row % group, i] = attended[row, i]


@njit(nogil=True, cache=True)
def extents(queries: int, heads: int, kv_heads: int, context: int, window: int) -> tuple[int, int, int, int]:
    """The first key that any query sees, how many they see, and the items of `copy_group` and of `attend_part`."""
    first = max(0, context - queries - window + 1) if window > 0 else 0
    seen = context - first
    each = max(1, ROWS * kv_heads // heads)
    return first, seen, kv_heads * ((seen + GROUP - 1) // GROUP), kv_heads * ((queries + each - 1) // each)


@njit(nogil=True, cache=True)
def copy_group(
    item: Any, key_pool: Any, value_pool: Any, table: Any, first: int, seen: int, keys: Any, values: Any
) -> None:
    """32 keys and values of one head."""
    groups = (seen + GROUP - 1) // GROUP
    head, group = item // groups, item % groups
    start = group * GROUP
    _copy_values(value_pool, table, head, first + start, seen - start, values[head], group)
    for tile in range(GROUP // LANES):
        at = start + tile * LANES
        _copy_keys(key_pool, table, head, first + at, seen - at, keys[head], at // LANES)


@njit(nogil=True, cache=True)
def attend_part(item: Any, q: Any, keys: Any, values: Any, seen: int, window: int, scale: Any, out: Any) -> None:
    """A few queries of one head. The last queries see the most keys, so they come first, and no thread is left with one
    of them at the end.
    """
    kv_heads, queries = keys.shape[0], q.shape[0]
    each = max(1, ROWS * kv_heads // q.shape[1])
    head, start = item % kv_heads, ((queries + each - 1) // each - 1 - item // kv_heads) * each
    end = min(start + each, queries)
    _attend(q[start:end], head, keys, values, seen - queries + start, window, scale, out[start:end])


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def prompt_attention(
    q: Any, key_pool: Any, value_pool: Any, table: Any, context: int, window: int, scale: np.float32, out: Any
) -> None:
    """q, out: [queries, heads, head_dim], the last tokens of a context with the blocks `table`. window: 0 for none."""
    kv_heads, head_dim = key_pool.shape[2], q.shape[2]
    first, seen, copies, parts = extents(q.shape[0], q.shape[1], kv_heads, context, window)
    groups = (seen + GROUP - 1) // GROUP
    keys = np.empty((kv_heads, groups * 2, (head_dim + GROUP - 1) // GROUP, GROUP, LANES), np.float32)
    values = np.empty((kv_heads, (head_dim + LANES - 1) // LANES, groups, GROUP, LANES), np.float32)
    for item in prange(copies):
        copy_group(np.int64(item), key_pool, value_pool, table, first, seen, keys, values)
    for item in prange(parts):
        attend_part(np.int64(item), q, keys, values, seen, window, scale, out)
