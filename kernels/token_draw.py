"""One token for each row of logits: temperature, min_p, top_k, top_p, Gumbel-max or arg max, its log-probability.

    floor   = the largest of: max x + log(min_p); the top_k-th greatest x; where the most likely reach top_p of what
              the two left (see floor_search.py)
    token   = arg max of x - noise over x >= floor           (arg max of x without a temperature, the first of equals)
    logprob = x(token) - log(sum of exp(x) over x >= floor)

    edit_logits      few entries a row      three launches; nothing waits for the device
    scan_kernel      tiles of all rows
    draw_kernel      one program a row

Source: Gumbel-max (Gumbel, 1954), with noise by counter (noise.py). Owns the kernel that joins a row's tiles, and the
launcher of all three. Knows no request.

A row without limits, and an arg max, moves its logits once, in the scan; draw_kernel then reads 28 bytes a tile. A
row with limits is read again by its one program, out of the L2 cache: about 2 passes to find each floor, 1 to copy what
is left, 1 to draw; 128k tokens of float32 take about 5 us a pass (one multiprocessor's share), all rows beside each
other.

Invariant: a row's result depends on its own logits and parameters alone, bit for bit; a row that cannot be drawn is
reported, and the others do not notice.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that
from kernels.floor_search import mass_from, search_floor
from kernels.launch import Launch
from kernels.logit_edits import edit_logits
from kernels.noise import key_of, noise_of
from kernels.on_device import on_device
from kernels.sampling import ALL_BANNED, Drawn, DrawParams, LogitEdits, TokenLists
from kernels.vocabulary_scan import (
    FLOATS,
    INTS,
    PARAM_POINTERS,
    SCAN_WARPS,
    TILE,
    argmax_first,
    finite_or_zero,
    load_scaled,
    load_temperature,
    load_truncates,
    scan_kernel,
)

KEPT = 1024  # tokens that a search holds in registers
VOCAB_MAX = 1 << 24  # counts are compared as float32

_ALL_BANNED = tl.constexpr(ALL_BANNED)
_FLOATS = tl.constexpr(FLOATS)
_INTS = tl.constexpr(INTS)
_DRAW_WARPS = 16
_PARAMS = {
    torch.float32: ("temperature", "top_p", "min_p"),
    torch.int32: ("top_k",),
    torch.int64: ("seed", "choice", "position"),
}


@triton.jit
def _find_floor(
    row_ptr: tl.tensor,
    kept_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    best: tl.tensor,
    top_k: tl.tensor,
    top_p: tl.tensor,
    min_p: tl.tensor,
    TILE: tl.constexpr,
    KEPT: tl.constexpr,
) -> tl.tensor:
    floor = tl.where(min_p > 0, best + tl.log(tl.where(min_p > 0, min_p, 1.0)), float("-inf"))
    number = vocab
    if (top_k > 0) & (top_k < vocab):
        wanted = top_k.to(tl.float32)
        floor, number = search_floor(
            row_ptr, kept_ptr, vocab, temperature, best, floor, number, wanted, False, TILE, KEPT
        )
    if top_p < 1:
        wanted = top_p * mass_from(row_ptr, vocab, temperature, floor, best, TILE)
        floor, number = search_floor(
            row_ptr, kept_ptr, vocab, temperature, best, floor, number, wanted, True, TILE, KEPT
        )
    return floor


@triton.jit
def _draw_from(
    row_ptr: tl.tensor,
    vocab: tl.tensor,
    temperature: tl.tensor,
    floor: tl.tensor,
    best: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    TILE: tl.constexpr,
) -> Any:
    """The token, its x, and the sum of exp(x - best), of the tokens whose x is at or above the floor."""
    scores = tl.full([TILE], float("-inf"), tl.float32)
    values = tl.full([TILE], float("-inf"), tl.float32)
    tokens = tl.arange(0, TILE)
    masses = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab, TILE):
        columns = start + tl.arange(0, TILE)
        x, _ = load_scaled(row_ptr, columns, vocab, temperature)
        may = x >= floor
        if tl.max(may.to(tl.int32), axis=0) > 0:
            masses += tl.where(may, tl.exp(x - best), 0.0)
            score = tl.where(may, x - noise_of(low, high, columns), float("-inf"))
            better = score > scores
            scores = tl.where(better, score, scores)
            values = tl.where(better, x, values)
            tokens = tl.where(better, columns, tokens)
    _, token = argmax_first(scores, tokens)
    return token, tl.max(tl.where(tokens == token, values, float("-inf")), axis=0), tl.sum(masses, axis=0)


@triton.jit(do_not_specialize_on_alignment=PARAM_POINTERS)
def _draw_kernel(
    ids_ptr: tl.tensor,  # [rows]
    logprobs_ptr: tl.tensor,  # [rows]
    floors_ptr: tl.tensor,  # [rows]
    totals_ptr: tl.tensor,  # [rows]
    faults_ptr: tl.tensor,  # [rows] those of the edits, if any; becomes the row's
    kept_ptr: tl.tensor,  # [rows, KEPT]
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
    TILES: tl.constexpr,  # a power of two
    TILE: tl.constexpr,
    KEPT: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    every = tl.arange(0, TILES)
    there = every < tiles
    floats = floats_ptr + row * _FLOATS * tiles + every
    ints = ints_ptr + row * _INTS * tiles + every
    peaks = tl.load(floats, mask=there, other=float("-inf"))
    best, _ = argmax_first(peaks, every)
    mass = tl.sum(tl.load(floats + tiles, mask=there, other=0.0) * tl.exp(peaks - finite_or_zero(best)), axis=0)
    _, tile = argmax_first(tl.load(floats + 2 * tiles, mask=there, other=float("-inf")), every)
    tile = tl.minimum(tile, tiles - 1)  # NaN is nowhere
    x = tl.load(floats_ptr + (row * _FLOATS + 3) * tiles + tile)
    token = tl.load(ints_ptr + (row * _INTS + 1) * tiles + tile)
    fault = tl.maximum(tl.load(faults_ptr + row), tl.max(tl.load(ints + 2 * tiles, mask=there, other=0), axis=0))
    fault = tl.where((fault == 0) & (best == float("-inf")), _ALL_BANNED, fault)
    floor = float("-inf")
    temperature, drawn = load_temperature(temperature_ptr, row)
    if (fault == 0) & drawn & load_truncates(top_k_ptr, top_p_ptr, min_p_ptr, row, vocab):
        row_ptr = logits_ptr + row * row_stride
        top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
        floor = _find_floor(row_ptr, kept_ptr + row * KEPT, vocab, temperature, best, top_k, top_p, min_p, TILE, KEPT)
        low, high = key_of(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(position_ptr + row))
        token, x, mass = _draw_from(row_ptr, vocab, temperature, floor, best, low, high, TILE)
    best = finite_or_zero(best)
    log_mass = tl.log(tl.where(mass > 0, mass, 1.0))
    tl.store(ids_ptr + row, tl.minimum(token, vocab - 1).to(tl.int64))
    tl.store(logprobs_ptr + row, x - best - log_mass)
    tl.store(floors_ptr + row, floor)
    tl.store(totals_ptr + row, best + log_mass)
    tl.store(faults_ptr + row, fault)


def draw_tokens(logits: Tensor, params: DrawParams, edits: LogitEdits | None = None) -> Drawn:
    """logits: [rows, vocab] float32, or bfloat16 or float16 without edits; rows may lie apart. Edits change them."""
    _check(logits, params)
    rows, vocab = logits.shape
    device = logits.device
    faults = torch.zeros(rows, dtype=torch.int32, device=device) if edits is None else edit_logits(logits, edits)
    ids = torch.empty(rows, dtype=torch.int64, device=device)
    logprobs, floors, totals = (torch.empty(rows, device=device) for _ in range(3))
    drawn = Drawn(ids, logprobs, floors, totals, faults)
    if rows == 0:
        return drawn
    tile = min(TILE, int(triton.next_power_of_2(vocab)))
    tiles = -(-vocab // tile)
    floats = torch.empty(rows, FLOATS, tiles, device=device)
    ints = torch.empty(rows, INTS, tiles, dtype=torch.int32, device=device)
    limits = (params.temperature, params.top_k, params.top_p, params.min_p)
    inputs = (logits, *limits, params.seed, params.choice, params.position, logits.stride(0), vocab, tiles)
    on_device(device, scan_kernel, (rows, tiles))(floats, ints, *inputs, TILE=tile, num_warps=SCAN_WARPS)
    on_device(device, _draw_kernel, (rows,))(
        *(ids, logprobs, floors, totals, faults),
        torch.empty(rows, KEPT, device=device),
        *(floats, ints, *inputs),
        TILES=triton.next_power_of_2(tiles),
        TILE=tile,
        KEPT=KEPT,
        num_warps=_DRAW_WARPS,
    )
    return drawn


def _check(logits: Tensor, params: DrawParams) -> None:
    expect("logits", logits, (None, None), FLOAT_TYPES, logits.device, strided=True)
    rows, vocab = logits.shape
    expect_that("logits", 0 < vocab < VOCAB_MAX, f"from 1 to {VOCAB_MAX - 1} tokens")
    for dtype, names in _PARAMS.items():
        for name in names:
            expect(name, getattr(params, name), (rows,), dtype, logits.device)


def launches(_architecture: str) -> list[Launch]:
    def run(vocab: int, dtype: torch.dtype) -> None:
        whole, long = torch.zeros(2, dtype=torch.int32), torch.zeros(1, dtype=torch.int64)
        number, lists = torch.zeros(1), TokenLists(whole, whole, torch.zeros(2))
        params = DrawParams(number, whole[:1], number, number, long, long, long)
        edits = LogitEdits(lists, lists, lists, number, number, number)
        draw_tokens(torch.zeros(1, vocab, dtype=dtype), params, edits if dtype == torch.float32 else None)

    return [
        Launch(
            f"sampling, {vocab} tokens, {str(dtype).removeprefix('torch.')}",
            lambda vocab=vocab, dtype=dtype: run(vocab, dtype),
            checked=(vocab, dtype) == (128256, torch.float32),
        )
        for vocab in (32000, 49152, 128256, 151936, 262144)
        for dtype in (torch.float32, torch.bfloat16)
    ]
