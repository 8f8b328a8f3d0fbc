"""The parameters of a step's draws as tensors on the device: what `kernels.sampling` takes, from what a batch carries.

Knows no logits. Invariant: nothing is made for what no row asks for, and nothing waits for the device.
"""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.sampling import DrawParams, LogitEdits, TokenLists
from worker.engine.batch import SampleParams
from worker.engine.staging import Staging

_NO_IDS: NDArray[np.int64] = np.zeros(0, np.int64)
_NO_VALUES: NDArray[np.float32] = np.zeros(0, np.float32)
_SEED_MASK = (1 << 64) - 1
_FLOATS = attrgetter("temperature"), attrgetter("top_p"), attrgetter("min_p")
_INTS = attrgetter("choice"), attrgetter("position")
_TOP_K = attrgetter("top_k")
Listed = tuple[NDArray[np.int64], NDArray[np.float32]]


def draw_params(params: list[SampleParams], staging: Staging) -> DrawParams:
    rows = len(params)
    floats, counters = np.empty((3, rows), np.float32), np.empty((3, rows), np.uint64)
    # Column by column: made of rows of Python's numbers, these arrays take ten times as long.
    for column, field in zip(floats, _FLOATS, strict=True):
        column[:] = np.fromiter(map(field, params), np.float32, rows)
    counters[0] = np.fromiter((p.seed & _SEED_MASK for p in params), np.uint64, rows)
    for column, field in zip(counters[1:], _INTS, strict=True):
        column[:] = np.fromiter(map(field, params), np.uint64, rows)
    temperature, top_p, min_p = staging.up(floats)
    seed, choice, position = staging.up(counters.view(np.int64))
    return DrawParams(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        top_k=staging.up(np.fromiter(map(_TOP_K, params), np.int32, rows)),
        seed=seed,
        choice=choice,
        position=position,
    )


def logit_edits(params: list[SampleParams], staging: Staging) -> LogitEdits | None:
    """None if no row asks for any."""
    if not any(p.bias is not None or p.seen is not None or p.banned for p in params):
        return None
    penalties = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for p in params]
    rates = staging.up(np.array(penalties, np.float32).T.copy())
    return LogitEdits(
        bias=_lists(
            [(_NO_IDS, _NO_VALUES) if p.bias is None else (p.bias.ids, p.bias.values) for p in params], staging
        ),
        seen=_lists(
            [(_NO_IDS, _NO_VALUES) if p.seen is None else (p.seen.ids, p.seen.generated) for p in params], staging
        ),
        banned=_lists([_banned(p.banned) for p in params], staging),
        repetition=rates[0],
        presence=rates[1],
        frequency=rates[2],
    )


def _banned(tokens: frozenset[int]) -> Listed:
    return np.fromiter(tokens, np.int64, len(tokens)), np.zeros(len(tokens), np.float32)


def _lists(rows: Sequence[Listed], staging: Staging) -> TokenLists:
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(ids) for ids, _ in rows], out=starts[1:])
    ids = np.concatenate([ids for ids, _ in rows]).astype(np.int32)
    values: NDArray[Any] = np.concatenate([values for _, values in rows]).astype(np.float32)
    return TokenLists(staging.up(starts), staging.up(_some(ids)), staging.up(_some(values)))


def _some(values: NDArray[Any]) -> NDArray[Any]:
    """A device has no address for nothing."""
    return values if len(values) else np.zeros(1, values.dtype)
