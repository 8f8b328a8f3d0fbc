"""The search for a row's floor, the least x that top_k or top_p lets be drawn, without a sort.

    floor = the greatest value v in the row with  count(x >= v) >= top_k   or   sum of exp(x >= v) >= top_p * total

    the row's x:   low ........ pivot ........ high = max x
                          <- not enough at or above it: high falls below the pivot
                             enough: low rises to the pivot ->

A bisection over the ordered bits of the numbers, which ends at a number of the row, exactly; equals of the last one
kept stay. Passes over the row until at most KEPT tokens are at or above the lower end (for usual limits one or two,
since the first HALVINGS pivots halve the distance, 64 at most from the best); these are then copied, in their order,
and the rest of the search, at most 32 steps, runs in registers.

Owns device functions. Invariant: reads one row and nothing of any other; no atomics, so every sum has one order.
"""

from typing import Any

import triton.language as tl

from kernels.part import part
from kernels.vocabulary_scan import load_scaled

_HALVINGS = tl.constexpr(12)
_REACH = tl.constexpr(64.0)  # exp(-64) of the best token's share matters to no limit on a share


@part
def _ordered(x: tl.tensor) -> tl.tensor:
    """An int64 that compares as the float32 does."""
    bits = x.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@part
def _float_of(ordered: tl.tensor) -> tl.tensor:
    bits = ordered.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@part
def _halfway(low: tl.tensor, high: tl.tensor, best: tl.tensor, step: tl.tensor) -> tl.tensor:
    """Above `low` and at most `high`, all three ordered."""
    middle = _ordered((tl.maximum(_float_of(low), best - _REACH) + _float_of(high)) * 0.5)
    inside = (middle > low) & (middle <= high) & (step < _HALVINGS)
    return tl.where(inside, middle, low + (high - low + 1) // 2)


@part
def _weigh(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    pivot: tl.tensor,
    best: tl.tensor,
    TILE: tl.constexpr,
) -> Any:
    """How many x of the row are at or above the pivot, and the sum of their exp(x - best)."""
    numbers = tl.zeros([TILE], tl.int32)
    masses = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab, TILE):
        x, _ = load_scaled(row_ptr, start + tl.arange(0, TILE), vocab, temperature)
        above = x >= pivot
        numbers += above.to(tl.int32)
        masses += tl.where(above, tl.exp(x - best), 0.0)
    return tl.sum(numbers, axis=0), tl.sum(masses, axis=0)


@part
def mass_from(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    best: tl.tensor,
    TILE: tl.constexpr,
) -> tl.tensor:
    """The sum of exp(x - best) of all x at or above the floor."""
    masses = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab, TILE):
        x, _ = load_scaled(row_ptr, start + tl.arange(0, TILE), vocab, temperature)
        masses += tl.where(x >= floor, tl.exp(x - best), 0.0)
    return tl.sum(masses, axis=0)


@part
def _keep(
    row_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    low: tl.tensor,
    TILE: tl.constexpr,
    KEPT: tl.constexpr,
) -> tl.tensor:
    """[KEPT] the x at or above `low` in their order, at most KEPT, then -inf. What is -inf is not copied."""
    filled = 0
    for start in range(0, vocab, TILE):  # pyright: ignore[reportArgumentType] - it is not Python's own here
        x, _ = load_scaled(row_ptr, start + tl.arange(0, TILE), vocab, temperature)
        above = ((x >= low) & (x > float("-inf"))).to(tl.int32)
        number = tl.sum(above, axis=0)
        if number > 0:
            tl.store(kept_ptr + filled + tl.cumsum(above, axis=0) - 1, x, mask=above > 0)
        filled += number
    tl.debug_barrier()  # read by other threads than wrote
    places = tl.arange(0, KEPT)
    x = tl.load(kept_ptr + places, mask=places < filled, other=float("-inf"))
    tl.debug_barrier()  # the next search of this row writes there again
    return x


@part
def search_floor(
    row_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    best: tl.tensor,
    floor: tl.tensor,
    number: tl.tensor,
    wanted: tl.tensor,
    BY_MASS: tl.constexpr,
    TILE: tl.constexpr,
    KEPT: tl.constexpr,
) -> Any:
    """The new floor, not below `floor`, and how many tokens at most are at or above it (`number` are at `floor`).

    wanted: float32, tokens; or the sum of their exp(x - best).
    """
    low, high = _ordered(floor), _ordered(best)
    step = 0
    while (low < high) & (number > KEPT):
        pivot = _halfway(low, high, best, step)
        count, mass = _weigh(row_ptr, vocab, temperature, _float_of(pivot), best, TILE)
        amount = mass if BY_MASS else count.to(tl.float32)
        enough = amount >= wanted
        low = tl.where(enough, pivot, low)
        high = tl.where(enough, high, pivot - 1)
        number = tl.where(enough, count, number)
        step += 1
    if low < high:
        x = _keep(row_ptr, kept_ptr, vocab, temperature, _float_of(low), TILE, KEPT)
        places = _ordered(x)
        weights = tl.exp(x - best) if BY_MASS else tl.full([KEPT], 1.0, tl.float32)
        while low < high:
            pivot = low + (high - low + 1) // 2
            enough = tl.sum(tl.where(places >= pivot, weights, 0.0), axis=0) >= wanted
            low = tl.where(enough, pivot, low)
            high = tl.where(enough, high, pivot - 1)
    return _float_of(low), number
