"""The loops of the CPU operations, compiled for this processor by numba when first called and cached on disk.

Everything is float32 and contiguous. Steps of a few rows run in the caller's thread, since waking another costs more
than they take. Knows no torch.

Invariant: a row (in attention: a sequence) is computed by one thread in one order, so its bits do not depend on others.
NaN stays NaN, and only in its own row: no fast-math flag here assumes otherwise.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import types
from numba.extending import intrinsic
from numpy.typing import NDArray

Floats = NDArray[np.float32]

ROWS_SERIAL = 8
FAST = {"reassoc", "contract", "arcp", "nsz"}  # allows sums in vectors; NaN and infinity keep their meaning
LOG2_E = np.float32(1.44269504)
LN2_HIGH, LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
EXP_MIN, EXP_MAX = np.float32(-87.0), np.float32(88.0)
HALF, ONE, ZERO = np.float32(0.5), np.float32(1.0), np.float32(0.0)
# Minimax polynomial of (exp(r) - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2] (Cephes, expf): below 2 ulp
P0, P1, P2 = np.float32(1.9875691500e-4), np.float32(1.3981999507e-3), np.float32(8.3334519073e-3)
P3, P4, P5 = np.float32(4.1665795894e-2), np.float32(1.6666665459e-1), np.float32(5.0000001201e-1)


def _power_of_two(_typing: Any, _exponent: Any) -> Any:
    """2 ** exponent by its bits. exponent: int32, -126 to 127."""

    def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.add(values[0], word(127)), word(23)), ir.FloatType())

    return types.float32(types.int32), generate


_two_to_the: Any = intrinsic(_power_of_two)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _exp(x: Any) -> Any:
    """By arithmetic alone, so that a loop over it becomes vector instructions; math.exp is a call for each number."""
    x = max(x, EXP_MIN)  # in this order of arguments, NaN is kept
    x = min(x, EXP_MAX)
    n = np.floor(x * LOG2_E + HALF)
    r = x - n * LN2_HIGH - n * LN2_LOW
    p = ((((P0 * r + P1) * r + P2) * r + P3) * r + P4) * r + P5
    return (p * r * r + r + ONE) * _two_to_the(np.int32(n))


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def norm_row(x: Any, weight: Any, eps: Any, out: Any) -> None:
    total = ZERO
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    factor = ONE / np.sqrt(total / np.float32(x.shape[0]) + eps)
    for i in range(x.shape[0]):
        out[i] = x[i] * factor * weight[i]


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def rms_norm(x: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    if x.shape[0] < ROWS_SERIAL:
        for row in range(x.shape[0]):
            norm_row(x[row], weight, eps, out[row])
    else:
        for row in prange(x.shape[0]):
            norm_row(x[row], weight, eps, out[row])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_norm_row(x: Any, residual: Any, weight: Any, eps: Any, out: Any) -> None:
    for i in range(x.shape[0]):
        residual[i] += x[i]
    norm_row(residual, weight, eps, out)


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def add_rms_norm(x: Floats, residual: Floats, weight: Floats, eps: np.float32, out: Floats) -> None:
    """Residual += x; out = norm of it."""
    if x.shape[0] < ROWS_SERIAL:
        for row in range(x.shape[0]):
            add_norm_row(x[row], residual[row], weight, eps, out[row])
    else:
        for row in prange(x.shape[0]):
            add_norm_row(x[row], residual[row], weight, eps, out[row])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def silu_row(gate_up: Any, out: Any) -> None:
    gate, up = gate_up[: out.shape[0]], gate_up[out.shape[0] :]
    for i in range(out.shape[0]):
        out[i] = gate[i] / (ONE + _exp(-gate[i])) * up[i]


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def silu_and_mul(gate_up: Floats, out: Floats) -> None:
    if out.shape[0] < ROWS_SERIAL:
        for row in range(out.shape[0]):
            silu_row(gate_up[row], out[row])
    else:
        for row in prange(out.shape[0]):
            silu_row(gate_up[row], out[row])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _rotate(x: Any, cos: Any, sin: Any, out: Any) -> None:
    half = cos.shape[0]
    first, second, rotated_first, rotated_second = x[:half], x[half:], out[:half], out[half:]
    for i in range(half):
        rotated_first[i] = first[i] * cos[i] - second[i] * sin[i]
        rotated_second[i] = second[i] * cos[i] + first[i] * sin[i]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def rope_row(q: Any, k: Any, v: Any, cos: Any, sin: Any, keys: Any, values: Any, slot: Any, out: Any) -> None:
    for head in range(q.shape[0]):
        _rotate(q[head], cos, sin, out[head])
    if slot >= 0:
        block, offset = slot // keys.shape[1], slot % keys.shape[1]
        for head in range(k.shape[0]):
            _rotate(k[head], cos, sin, keys[block, offset, head])
            for i in range(v.shape[1]):
                values[block, offset, head, i] = v[head, i]


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def rope_and_cache(
    q: Floats,
    k: Floats,
    v: Floats,
    cos: Floats,
    sin: Floats,
    positions: NDArray[np.int64],
    keys: Floats,
    values: Floats,
    slots: NDArray[np.int64],
    out: Floats,
) -> None:
    """Rotated q into out; rotated k and v into the pool."""
    if q.shape[0] < ROWS_SERIAL:
        for row in range(q.shape[0]):
            place = positions[row]
            rope_row(q[row], k[row], v[row], cos[place], sin[place], keys, values, slots[row], out[row])
    else:
        for row in prange(q.shape[0]):
            place = positions[row]
            rope_row(q[row], k[row], v[row], cos[place], sin[place], keys, values, slots[row], out[row])


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def softmax_row(scores: Any) -> Any:
    """exp(score - maximum) in place; their sum."""
    maximum = scores[0]
    for i in range(scores.shape[0]):
        maximum = max(maximum, scores[i])
    total = ZERO
    for i in range(scores.shape[0]):
        weight = _exp(scores[i] - maximum)
        scores[i] = weight
        total += weight
    return total


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _score(q: Any, keys: Any, table: Any, first_head: Any, first: Any, scale: Any, scores: Any) -> None:
    """Scores [kv_heads, group, seen]: q [kv_heads, group, head_dim] times the keys from the place `first` on."""
    block_size = keys.shape[1]
    for seen in range(scores.shape[2]):
        place = first + seen
        of_place = keys[table[place // block_size], place % block_size]
        for head in range(q.shape[0]):
            key = of_place[first_head + head]
            for g in range(q.shape[1]):
                query = q[head, g]
                total = ZERO
                for i in range(query.shape[0]):
                    total += query[i] * key[i]
                scores[head, g, seen] = total * scale


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _gather(weights: Any, values: Any, table: Any, first_head: Any, first: Any, out: Any) -> None:
    """Out [kv_heads, group, head_dim] += weights [kv_heads, group, seen] times the values from `first` on."""
    block_size = values.shape[1]
    for seen in range(weights.shape[2]):
        place = first + seen
        of_place = values[table[place // block_size], place % block_size]
        for head in range(out.shape[0]):
            value = of_place[first_head + head]
            for g in range(out.shape[1]):
                weight, total = weights[head, g, seen], out[head, g]
                for i in range(total.shape[0]):
                    total[i] += weight * value[i]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def attend(
    q: Any,
    keys: Any,
    values: Any,
    table: Any,
    first_head: Any,
    heads: Any,
    first: Any,
    context: Any,
    scale: Any,
    out: Any,
) -> None:
    """The queries of `heads` KV heads over the places `first` to `context`. q, out: [heads of queries, head_dim]."""
    group, head_dim = q.shape[0] // keys.shape[2], q.shape[1]
    # Separate arrays: the compiler does not know that a slice is contiguous, and would not vectorise.
    queries = np.empty((heads, group, head_dim), np.float32)
    scores = np.empty((heads, group, context - first), np.float32)
    attended = np.zeros((heads, group, head_dim), np.float32)
    for head in range(heads):
        for g in range(group):
            for i in range(head_dim):
                queries[head, g, i] = q[(first_head + head) * group + g, i]
    _score(queries, keys, table, first_head, first, scale, scores)
    for head in range(heads):
        for g in range(group):
            total = softmax_row(scores[head, g])
            for seen in range(scores.shape[2]):
                scores[head, g, seen] /= total
    _gather(scores, values, table, first_head, first, attended)
    for head in range(heads):
        for g in range(group):
            for i in range(head_dim):
                out[(first_head + head) * group + g, i] = attended[head, g, i]


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def decode_attention(
    q: Floats,
    keys: Floats,
    values: Floats,
    rows: NDArray[np.int64],
    sequences: NDArray[np.int64],
    tables: NDArray[np.int32],
    contexts: NDArray[np.int32],
    window: int,
    heads: int,
    scale: np.float32,
    out: Floats,
) -> None:
    """Query `rows[i]` is the last token of `sequences[i]`; K and V are read where they lie. window: 0 for none.

    heads: how many KV heads of a sequence one thread takes.
    """
    parts = keys.shape[2] // heads
    for item in prange(rows.shape[0] * parts):
        row, sequence, first_head = rows[item // parts], sequences[item // parts], item % parts * heads
        context = contexts[sequence]
        first = max(0, context - window) if window > 0 else 0
        attend(q[row], keys, values, tables[sequence], first_head, heads, first, context, scale, out[row])
