"""All layers of a decoder on a CPU in one compiled call that several threads do together, over arrays.

Called one by one from Python, the operations of a layer cost more than what they compute when a step has few rows, and
each begins and ends with waking and awaiting other threads. Here a step is one call, in which threads share the items
of each operation (`shared_work`).

Owns the order of the operations for arrays, as `worker.models.decoder` does for tensors. The operations are those of
`cpu_loops`, `prompt_attention`, `packed_matmul` and `rounded_matmul`. Knows no torch. Everything is float32.

Invariant: a row's numbers come from the same instructions in the same order, whichever thread computes it and whatever
is computed beside it.
"""

from typing import Any

import numpy as np
from numba import njit
from numba.core import types
from numba.extending import intrinsic, overload

from kernels.cpu_loops import FAST, add_norm_row, attend, norm_row, rope_row, silu_row
from kernels.packed_matmul import ROWS_FEW, few_rows, many_rows
from kernels.prompt_attention import attend_part, copy_group, extents
from kernels.rounded_matmul import all_rows, round_row
from kernels.shared_work import ITEMS_WON_MAX, await_done, claim, done, take, wins
from kernels.vector_code import LANES

PHASES, PHASES_PROMPT = 10, 2  # of a layer, and for each prompt in it
ADDRESSES = 22  # of a layer's arrays: 4 products of 4 each, 2 norms, 2 norms of heads, keys, values
SHARES = 8  # items of a product for each thread: enough to even out, too few to count
ROOM = 24 * 1024  # numbers of an item's results, if it can be: more leave a core's cache before they are written
FIXED = 3  # rows: what a product of one costs beyond its share of a product of many


def _emit_array_at(_typing: Any, address: Any, like: Any) -> Any:
    """The array of the same type and shape at another address."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array = context.make_array(signature.args[1])(context, builder, values[1])
        array.data = builder.inttoptr(values[0], array.data.type)
        for owner in ("meminfo", "parent"):
            setattr(array, owner, getattr(array, owner).type(None))
        return array._getvalue()  # noqa: SLF001

    return like(address, like), generate


_array_at: Any = intrinsic(_emit_array_at)


def _tile(x: Any, bits: Any, weight: Any, out: Any, tile: int) -> None:
    """One tile of out = x @ weight.T. weight: (codes, scales, minimums, ...); bits: x in 8 bits, if it is rounded."""
    raise NotImplementedError("compiled code alone calls this")


@overload(_tile)
def _choose_tile(x: Any, bits: Any, weight: Any, out: Any, tile: int) -> Any:  # noqa: ARG001  # pyright: ignore[reportUnusedFunction]
    def rounded(x: Any, bits: Any, weight: Any, out: Any, tile: int) -> None:  # noqa: ARG001  numba asks for the same names
        all_rows(bits[0], bits[1], bits[2], weight[0], weight[1], weight[2], out, tile)

    def exact(x: Any, bits: Any, weight: Any, out: Any, tile: int) -> None:  # noqa: ARG001
        if x.shape[0] <= ROWS_FEW:
            few_rows(x, weight[0], weight[1], weight[2], out, tile)
        else:
            many_rows(x, weight[0], weight[1], weight[2], out, tile)

    return rounded if isinstance(bits, types.BaseTuple) and weight.types[0].dtype == types.uint8 else exact


def _round(x: Any, bits: Any, row: int) -> None:
    """One row of x to 8 bits, where there is room for it."""
    raise NotImplementedError("compiled code alone calls this")


@overload(_round)
def _choose_round(x: Any, bits: Any, row: int) -> Any:  # noqa: ARG001  # pyright: ignore[reportUnusedFunction]
    def rounds(x: Any, bits: Any, row: int) -> None:
        round_row(x[row], bits[0][row], bits[1][row], bits[2][row])

    def keeps(x: Any, bits: Any, row: int) -> None:
        pass

    return rounds if isinstance(bits, types.BaseTuple) else keeps


@njit(nogil=True, cache=True)
def _tiles(x: Any, bits: Any, weight: Any, bias: Any, first: int, out: Any) -> None:
    """As many tiles from `first` on as `out` holds."""
    end = first + out.shape[1] // LANES
    own = weight[0][first:end], weight[1][first:end], weight[2][first:end]
    for tile in range(end - first):
        _tile(x, bits, own, out, tile)
    if bias.shape[0]:
        for row in range(out.shape[0]):
            for i in range(out.shape[1]):
                out[row, i] += bias[first * LANES + i]


@njit(nogil=True, cache=True)
def project(x: Any, bits: Any, like: Any, addresses: Any, out: Any, shares: int, counts: Any, phase: Any) -> None:
    """Out = x @ weight.T + bias; all threads do it together. A bias of no numbers is none.

    bits: x in 8 bits, if it is rounded. like: (codes, scales, minimums, bias), of the types and shapes of those
    that lie at the four addresses. shares: into how many items it is cut.
    """
    weight = _array_at(addresses[0], like[0]), _array_at(addresses[1], like[1]), _array_at(addresses[2], like[2])
    bias = _array_at(addresses[3], like[3])
    rows, tiles = x.shape[0], like[0].shape[0]  # no row at all, if a step samples none
    fitting = ROOM // (max(1, rows) * LANES)
    each = max((tiles + ITEMS_WON_MAX - 1) // ITEMS_WON_MAX, min(tiles // shares, fitting))
    items = (tiles + each - 1) // each
    patience = each * like[0].shape[1] * (rows + FIXED) // 2
    room = np.empty(rows * each * LANES, np.float32)
    item = take(counts, phase, items, patience)
    while item < items:
        first = item * each
        width = (min(tiles, first + each) - first) * LANES
        mine = room[: rows * width].reshape(rows, width)
        _tiles(x, bits, weight, bias, first, mine)
        if wins(counts, phase, item):
            out[:, first * LANES : first * LANES + width] = mine
            done(counts, phase)
        item = take(counts, phase, items, patience)


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _turn(qkv: Any, norms: Any, eps: Any, cos: Any, sin: Any, keys: Any, values: Any, slot: Any, out: Any) -> None:
    """One row: its heads normed where there are norms, q and k rotated, k and v written to the pool."""
    heads, kv_heads = out.shape[0], keys.shape[2]
    if norms[0].shape[0]:
        for head in range(heads):
            norm_row(qkv[head], norms[0], eps, qkv[head])
        for head in range(heads, heads + kv_heads):
            norm_row(qkv[head], norms[1], eps, qkv[head])
    rope_row(qkv[:heads], qkv[heads : heads + kv_heads], qkv[heads + kv_heads :], cos, sin, keys, values, slot, out)


@njit(nogil=True, cache=True)
def _turn_all(
    qkv: Any, norms: Any, eps: Any, step: Any, keys: Any, values: Any, out: Any, counts: Any, phase: Any
) -> None:
    cos, sin, positions, slots = step[0], step[1], step[2], step[3]
    row = claim(counts, phase)
    while row < out.shape[0]:
        place = positions[row]
        _turn(qkv[row], norms, eps, cos[place], sin[place], keys, values, slots[row], out[row])
        done(counts, phase)
        row = claim(counts, phase)
    await_done(counts, phase, out.shape[0])


@njit(nogil=True, cache=True)
def attend_decodes(
    q: Any, keys: Any, values: Any, decodes: Any, window: int, scale: Any, out: Any, counts: Any, phase: Any
) -> None:
    rows, sequences, tables, contexts, heads = decodes
    parts, own = keys.shape[2] // heads, heads * q.shape[1] // keys.shape[2]
    wanted = rows.shape[0] * parts
    each = max(1, (wanted + ITEMS_WON_MAX - 1) // ITEMS_WON_MAX)
    items = (wanted + each - 1) // each
    mine = np.empty((each, q.shape[1], q.shape[2]), np.float32)
    patience = 0
    for sequence in sequences:
        patience = max(patience, 2 * each * heads * contexts[sequence])
    item = take(counts, phase, items, patience)
    while item < items:
        start, end = item * each, min(wanted, (item + 1) * each)
        for one in range(start, end):
            row, sequence = rows[one // parts], sequences[one // parts]
            context = contexts[sequence]
            first = max(0, context - window) if window > 0 else 0
            head, result = one % parts * heads, mine[one - start]
            attend(q[row], keys, values, tables[sequence], head, heads, first, context, scale, result)
        if wins(counts, phase, item):
            for one in range(start, end):
                head = one % parts * own
                out[rows[one // parts], head : head + own] = mine[one - start, head : head + own]
            done(counts, phase)
        item = take(counts, phase, items, patience)


@njit(nogil=True, cache=True)
def attend_prompt(
    q: Any, pools: Any, tiles: Any, table: Any, context: Any, window: int, scale: Any, out: Any, counts: Any, phase: Any
) -> None:
    """As `prompt_attention`."""
    key_pool, value_pool = pools
    keys, values = tiles
    first, seen, copies, parts = extents(q.shape[0], q.shape[1], key_pool.shape[2], context, window)
    item = claim(counts, phase)
    while item < copies:
        copy_group(item, key_pool, value_pool, table, first, seen, keys, values)
        done(counts, phase)
        item = claim(counts, phase)
    await_done(counts, phase, copies)
    item = claim(counts, phase + 1)
    while item < parts:
        attend_part(item, q, keys, values, seen, window, scale, out)
        done(counts, phase + 1)
        item = claim(counts, phase + 1)
    await_done(counts, phase + 1, parts)


@njit(nogil=True, cache=True)
def _round_all(x: Any, bits: Any, counts: Any, phase: Any) -> None:
    row = claim(counts, phase)
    while row < x.shape[0]:
        _round(x, bits, row)
        done(counts, phase)
        row = claim(counts, phase)
    await_done(counts, phase, x.shape[0])


@njit(nogil=True, cache=True)
def _add_norm(y: Any, residual: Any, weight: Any, eps: Any, x: Any, bits: Any, counts: Any, phase: Any) -> None:
    """Residual += y; x = norm of it, in 8 bits too if it is rounded."""
    row = claim(counts, phase)
    while row < x.shape[0]:
        add_norm_row(y[row], residual[row], weight, eps, x[row])
        _round(x, bits, row)
        done(counts, phase)
        row = claim(counts, phase)
    await_done(counts, phase, x.shape[0])


@njit(nogil=True, cache=True)
def _silu(gate_up: Any, out: Any, bits: Any, counts: Any, phase: Any) -> None:
    row = claim(counts, phase)
    while row < out.shape[0]:
        silu_row(gate_up[row], out[row])
        _round(out, bits, row)
        done(counts, phase)
        row = claim(counts, phase)
    await_done(counts, phase, out.shape[0])


@njit(nogil=True, cache=True)
def layers(
    likes: Any, addresses: Any, windows: Any, first_norm: Any, eps: Any, shares: int, step: Any, room: Any, counts: Any
) -> None:
    """From embedded rows, which are zeros in `residual` and themselves in `y`, to the normed rows for the head in `x`.

    likes: arrays of the first layer, whose types and shapes all have: (codes, scales, minimums, bias) of qkv, the
    attention's output, gate and up, and down; a norm, a norm of heads, keys. addresses: [layers, ADDRESSES] of all of
    them, in that order. step: (cos, sin, positions, slots, decodes, prompts, scale); decodes: as `attend_decodes`
    takes them, prompts: [3, prompts] first row, end and sequence. room: as named below; the last three are for rows
    in 8 bits, if wanted. counts: of 1 + layers * (PHASES + PHASES_PROMPT * prompts) phases.
    """
    x, residual, qkv, q, attended, gate_up, activated, y, tiles, x_bits, attended_bits, activated_bits = room
    decodes, prompts, scale = step[4], step[5], step[6]
    tables, contexts = decodes[2], decodes[3]
    heads = qkv.reshape(qkv.shape[0], qkv.shape[1] // q.shape[2], q.shape[2])
    flat = attended.reshape(attended.shape[0], q.shape[1] * q.shape[2])
    phase = np.int64(0)  # a plain number here would be a constant, and what takes it compiled once more
    _add_norm(y, residual, first_norm, eps, x, x_bits, counts, phase)
    phase += 1
    for number in range(addresses.shape[0]):
        own, window = addresses[number], windows[number]
        head_norms = _array_at(own[18], likes[5]), _array_at(own[19], likes[5])
        keys, values = _array_at(own[20], likes[6]), _array_at(own[21], likes[6])
        project(x, x_bits, likes[0], own[0:4], qkv, shares, counts, phase)
        _turn_all(heads, head_norms, eps, step, keys, values, q, counts, phase + 1)
        attend_decodes(q, keys, values, decodes, window, scale, attended, counts, phase + 2)
        for prompt in range(prompts.shape[1]):
            first, end, sequence = prompts[0, prompt], prompts[1, prompt], prompts[2, prompt]
            attend_prompt(
                q[first:end],
                (keys, values),
                tiles,
                tables[sequence],
                np.int64(contexts[sequence]),
                window,
                scale,
                attended[first:end],
                counts,
                phase + PHASES + PHASES_PROMPT * prompt,
            )
        _round_all(flat, attended_bits, counts, phase + 3)
        project(flat, attended_bits, likes[1], own[4:8], y, shares, counts, phase + 4)
        _add_norm(y, residual, _array_at(own[16], likes[4]), eps, x, x_bits, counts, phase + 5)
        project(x, x_bits, likes[2], own[8:12], gate_up, shares, counts, phase + 6)
        _silu(gate_up, activated, activated_bits, counts, phase + 7)
        project(activated, activated_bits, likes[3], own[12:16], y, shares, counts, phase + 8)
        _add_norm(y, residual, _array_at(own[17], likes[4]), eps, x, x_bits, counts, phase + 9)
        phase += PHASES + PHASES_PROMPT * prompts.shape[1]
