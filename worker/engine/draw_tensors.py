"""The parameters of a step's draws as the tensors of `kernels.sampling`, made from those in a batch.

Knows no logits. Invariant: no tensor is made for a feature that no row uses, nothing waits for the device, and the
tensors of a step hold its rows' values, whatever they held before.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
_CHOICE, _POSITION, _TOP_K = attrgetter("choice"), attrgetter("position"), attrgetter("top_k")
# The parameters of a draw that stay the same from step to step.
_MANNER = attrgetter("temperature", "top_p", "min_p", "top_k", "seed", "choice")
Listed = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(slots=True, frozen=True)
class _Sent:
    """The rows of a step, and what the device has of them."""

    manners: list[tuple[float, ...]]
    positions: NDArray[np.int64]
    params: DrawParams


class DrawTensors:
    """One for all steps of a runner, in order: what an earlier step has sent of its rows is not sent again."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._sent: _Sent | None = None

    def of(self, rows: list[SampleParams]) -> DrawParams:
        """Sends nothing for the same rows as in the previous step, each one token further. The next call may change the
        returned tensors, on the device and in the order of launches.
        """
        manners = list(map(_MANNER, rows))
        positions = np.fromiter(map(_POSITION, rows), np.int64, len(rows))
        sent, self._sent = self._sent, None  # if sending fails, everything is sent again
        if sent is None or sent.manners != manners:
            params = self._whole(rows, positions)
        else:
            params = self._moved(sent, positions)
        self._sent = _Sent(manners, positions, params)
        return params

    def _moved(self, sent: _Sent, positions: NDArray[np.int64]) -> DrawParams:
        steps = positions - sent.positions
        if (steps == 1).all():
            sent.params.position.add_(1)
        elif steps.any():
            return replace(sent.params, position=self._staging.up(positions))
        return sent.params

    def _whole(self, rows: list[SampleParams], positions: NDArray[np.int64]) -> DrawParams:
        count = len(rows)
        floats, counters = np.empty((3, count), np.float32), np.empty((3, count), np.uint64)
        # Column by column: building these arrays from rows of Python numbers takes ten times as long.
        for column, field in zip(floats, _FLOATS, strict=True):
            column[:] = np.fromiter(map(field, rows), np.float32, count)
        counters[0] = np.fromiter((row.seed & _SEED_MASK for row in rows), np.uint64, count)
        counters[1] = np.fromiter(map(_CHOICE, rows), np.uint64, count)
        counters[2] = positions
        temperature, top_p, min_p = self._staging.up(floats)
        seed, choice, position = self._staging.up(counters.view(np.int64))
        return DrawParams(
            temperature=temperature,
            top_p=top_p,
            min_p=min_p,
            top_k=self._staging.up(np.fromiter(map(_TOP_K, rows), np.int32, count)),
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
    """At least one element: a device has no address for an empty array."""
    return values if len(values) else np.zeros(1, values.dtype)
