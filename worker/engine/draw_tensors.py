"""The parameters of a step's draws as tensors on the device: what `kernels.sampling` takes, from what a batch carries.

Knows no logits. Invariant: nothing is made for what no row asks for, and nothing waits for the device.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.sampling import DrawParams, LogitEdits, TokenLists
from worker.engine.batch import SampleParams
from worker.engine.staging import Staging

_NO_IDS: NDArray[np.int64] = np.zeros(0, np.int64)
_NO_VALUES: NDArray[np.float32] = np.zeros(0, np.float32)
Listed = tuple[NDArray[np.int64], NDArray[np.float32]]


def draw_params(params: list[SampleParams], staging: Staging) -> DrawParams:
    floats = staging.up(np.array([[p.temperature, p.top_p, p.min_p] for p in params], np.float32).T.copy())
    ints = [(p.seed & (1 << 64) - 1, p.choice, p.position) for p in params]
    counters = staging.up(np.array(ints, np.uint64).view(np.int64).T.copy())
    return DrawParams(
        temperature=floats[0],
        top_p=floats[1],
        min_p=floats[2],
        top_k=staging.up(np.array([p.top_k for p in params], np.int32)),
        seed=counters[0],
        choice=counters[1],
        position=counters[2],
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
