"""The drawing of tokens written plainly, one row and one token at a time: what `token_draw` must equal.

Slow on purpose: every row is sorted, sums are in float64, and the noise is computed in whole numbers and float64. The
logits themselves are changed in float32, as rounding decides which tokens are equal.
"""

import math

import numpy as np
import torch
from torch import Tensor

from kernels.sampling import (
    ALL_BANNED,
    BANNED,
    LOGIT_MAX,
    NOT_FINITE,
    OUTSIDE,
    PENALTY_MIN,
    TEMPERATURE_MIN,
    Drawn,
    DrawParams,
    LogitEdits,
    TokenLists,
)

_MASK = (1 << 64) - 1


def draw_tokens(logits: Tensor, params: DrawParams, edits: LogitEdits | None = None) -> Drawn:
    """See `token_draw.draw_tokens`. Edits change the logits here, too."""
    finite = logits.float().isfinite().all(-1).tolist()
    faults = [0 if good else NOT_FINITE for good in finite]
    if edits is not None:
        faults = [max(fault, _edit(logits[row], edits, row)) for row, fault in enumerate(faults)]
    results = [
        _draw(logits[row].float(), params, row) if not faults[row] else (0, 0.0, 0.0, 0.0) for row in range(len(faults))
    ]
    columns = [list(column) for column in zip(*results, strict=True)] or [[], [], [], []]
    faults = [
        fault or (ALL_BANNED if total == -math.inf else 0) for fault, total in zip(faults, columns[3], strict=True)
    ]
    logprobs, floors, totals = (torch.tensor(column, dtype=torch.float32) for column in columns[1:])
    return Drawn(
        torch.tensor(columns[0], dtype=torch.int64), logprobs, floors, totals, torch.tensor(faults, dtype=torch.int32)
    )


def _edit(logits: Tensor, edits: LogitEdits, row: int) -> int:
    """Changes one row. Returns its fault."""
    (bias, added), (seen, counts), (banned, _) = (_of(each, row) for each in (edits.bias, edits.seen, edits.banned))
    named = torch.cat((bias, seen, banned))
    if ((named < 0) | (named >= len(logits))).any():
        return OUTSIDE
    logits[bias] += added
    repetition = edits.repetition[row].clamp_min(PENALTY_MIN)
    values = logits[seen]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= counts * edits.frequency[row] + (counts > 0) * edits.presence[row]
    logits[seen] = values.clamp(-LOGIT_MAX, LOGIT_MAX)
    logits[banned] = BANNED
    return 0


def _of(lists: TokenLists, row: int) -> tuple[Tensor, Tensor]:
    start, end = lists.starts[row : row + 2].tolist()
    return lists.ids[start:end].long(), lists.values[start:end]


def _draw(logits: Tensor, params: DrawParams, row: int) -> tuple[int, float, float, float]:
    """Token, log-probability, floor, total of a row without infinities."""
    drawn = params.temperature[row] >= TEMPERATURE_MIN
    never = logits == BANNED
    x = (logits.masked_fill(never, 0.0) / (params.temperature[row] if drawn else 1.0)).masked_fill(never, -math.inf)
    if never.all():
        return 0, 0.0, -math.inf, -math.inf
    floor = _floor(x, params, row) if drawn else -math.inf
    kept = x.masked_fill(x < floor, -math.inf)
    total = float(kept.double().logsumexp(-1))
    scores = kept.double()
    if drawn:
        key = _key(*(int(each[row]) for each in (params.seed, params.choice, params.position)))
        scores = scores - noise(key, len(x))
    token = int(scores.argmax())
    return token, float(x[token]) - total, floor, total


def _floor(x: Tensor, params: DrawParams, row: int) -> float:
    order = x.sort(descending=True).values
    floor, top_k, top_p = -math.inf, int(params.top_k[row]), float(params.top_p[row])
    if params.min_p[row] > 0:
        floor = float(order[0] + params.min_p[row].log())
    if 0 < top_k < len(x):
        floor = max(floor, float(order[top_k - 1]))
    if top_p < 1:
        alive = order[order >= floor]
        reached = alive.double().softmax(-1).cumsum(-1) >= top_p
        floor = float(alive[int(reached.int().argmax())]) if reached.any() else floor
    return floor


def _key(seed: int, choice: int, position: int) -> int:
    """64 bits of three signed 64-bit numbers."""
    return _splitmix(_splitmix(_splitmix(seed & _MASK) ^ (choice & _MASK)) ^ (position & _MASK))


def _splitmix(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & _MASK
    return x ^ x >> 31


def noise(key: int, vocab: int) -> Tensor:
    """[vocab] float64: minus Gumbel noise of each token. The uniform number behind it is rounded to float32."""
    low, high = np.uint32(key & 0xFFFFFFFF), np.uint32(key >> 32)
    x = np.arange(vocab, dtype=np.uint32) * np.uint32(0x9E3779B1) ^ low
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B) ^ high
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    x = (x ^ x >> np.uint32(16)) & np.uint32(0x7FFFFFFF)
    uniform = np.minimum((x.astype(np.float32) + np.float32(0.5)) * np.float32(2**-31), np.float32(1 - 2**-24))
    return torch.from_numpy(np.log(-np.log1p(-uniform.astype(np.float64))))
