"""One pass over the vocabulary, which reduces each tile of a row to what drawing a token needs.

    x      = logit / temperature                                    (-inf where banned; logit for arg max)
    tile  -> max x, and where; sum of exp(x - max x); max of x - noise, where, and x there; whether all is finite

          vocabulary:  | tile 0 | tile 1 | ...  |        a program reads one tile of one row, once, into registers;
          row 0           p00      p01                   token_draw.py joins the tiles of a row
          row 1           p10      p11

Moves one logit a token, once, and 28 bytes a tile. About 10 FLOPs a token, and 60 instructions more where noise is
drawn, which is done only for rows that draw from their whole vocabulary. Bound by memory: a row of 128k tokens in
float32 is 0.5 MB, 0.12 us at 4.3 TB/s.

Invariant: the tiles follow from the vocabulary alone, so a row's numbers do not depend on the batch.
"""

from typing import Any

import triton
import triton.language as tl

from kernels.noise import key_of, noise_of
from kernels.part import part
from kernels.sampling import BANNED, NOT_FINITE, TEMPERATURE_MIN

TILE = 4096
SCAN_WARPS = 8
FLOATS = 4  # of a tile: max x, sum of exp, max score, x there
INTS = 3  # of a tile: where x is greatest, where the score is, fault

# Slices of one buffer may start anywhere: specialised on where, a kernel would compile anew, seconds in the middle of
# serving.
PARAM_POINTERS = [
    *("temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr"),
    *("seed_ptr", "choice_ptr", "position_ptr"),
]

_TEMPERATURE_MIN = tl.constexpr(TEMPERATURE_MIN)
_BANNED = tl.constexpr(BANNED)
_NOT_FINITE = tl.constexpr(NOT_FINITE)
_FLOATS = tl.constexpr(FLOATS)
_INTS = tl.constexpr(INTS)
_NOWHERE = tl.constexpr(2**31 - 1)


@part
def load_scaled(row_ptr: tl.tensor, columns: tl.tensor, vocab: tl.tensor, temperature: tl.tensor) -> Any:
    """The x of these tokens, -inf where banned or past the vocabulary; and the logits, 0 past it."""
    logits = tl.load(row_ptr + columns, mask=columns < vocab, other=0.0).to(tl.float32)
    never = (logits == _BANNED) | (columns >= vocab)
    return tl.where(never, float("-inf"), tl.div_rn(tl.where(never, 0.0, logits), temperature)), logits


@part
def load_temperature(temperature_ptr: tl.tensor, row: tl.tensor) -> Any:
    """What the logits are divided by, and whether the row is drawn at all (else it is arg max)."""
    temperature = tl.load(temperature_ptr + row)
    drawn = temperature >= _TEMPERATURE_MIN
    return tl.where(drawn, temperature, 1.0), drawn


@part
def load_truncates(
    top_k_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, row: tl.tensor, vocab: tl.tensor
) -> tl.tensor:
    top_k = tl.load(top_k_ptr + row)
    return (tl.load(top_p_ptr + row) < 1) | (tl.load(min_p_ptr + row) > 0) | ((top_k > 0) & (top_k < vocab))


@part
def argmax_first(values: tl.tensor, where: tl.tensor) -> Any:
    """The greatest value, and the least place that has it."""
    greatest = tl.max(values, axis=0)
    return greatest, tl.min(tl.where(values == greatest, where, _NOWHERE), axis=0)


@part
def finite_or_zero(x: tl.tensor) -> tl.tensor:
    """What may be taken from logits of which all are -inf: -inf - -inf is NaN."""
    return tl.where(x == float("-inf"), 0.0, x)


@triton.jit(do_not_specialize_on_alignment=PARAM_POINTERS)
def scan_kernel(
    floats_ptr: tl.tensor,  # [rows, FLOATS, tiles]
    ints_ptr: tl.tensor,  # [rows, INTS, tiles]
    logits_ptr: tl.tensor,  # [rows, vocab]
    temperature_ptr: tl.tensor,  # [rows]
    top_k_ptr: tl.tensor,  # [rows]
    top_p_ptr: tl.tensor,  # [rows]
    min_p_ptr: tl.tensor,  # [rows]
    seed_ptr: tl.tensor,  # [rows]
    choice_ptr: tl.tensor,  # [rows]
    position_ptr: tl.tensor,  # [rows]
    row_stride: tl.tensor,
    vocab: tl.tensor,
    tiles: tl.tensor,
    TILE: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    columns = tile * TILE + tl.arange(0, TILE)
    temperature, drawn = load_temperature(temperature_ptr, row)
    x, logits = load_scaled(logits_ptr + row * row_stride, columns, vocab, temperature)
    peak, peak_id = argmax_first(x, columns)
    score, score_id, score_x = peak, peak_id, peak
    if drawn & ~load_truncates(top_k_ptr, top_p_ptr, min_p_ptr, row, vocab):
        low, high = key_of(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(position_ptr + row))
        score, score_id = argmax_first(x - noise_of(low, high, columns), columns)
        score_x = tl.max(tl.where(columns == score_id, x, float("-inf")), axis=0)
    floats = floats_ptr + row * _FLOATS * tiles + tile
    tl.store(floats, peak)
    tl.store(floats + tiles, tl.sum(tl.exp(x - finite_or_zero(peak)), axis=0))
    tl.store(floats + 2 * tiles, score)
    tl.store(floats + 3 * tiles, score_x)
    ints = ints_ptr + row * _INTS * tiles + tile
    tl.store(ints, peak_id)
    tl.store(ints + tiles, score_id)
    tl.store(ints + 2 * tiles, tl.max(tl.where(tl.abs(logits) < float("inf"), 0, _NOT_FINITE), axis=0))
