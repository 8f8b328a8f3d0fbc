"""Sampling on the device of the logits, without waiting for it.

Owns the inputs of a draw and the transfer of its tokens to the host; the kernel draws them. Invariant: the ids on the
device are in the vocabulary even if a row has a fault, since the next step reads them there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from kernels.sampling import ALL_BANNED, BANNED, NOT_FINITE, OUTSIDE, TEMPERATURE_MIN, Drawn, DrawParams, LogitEdits
from worker.engine import sampler
from worker.engine.batch import Sampled, SampleParams, TokenLogprobs
from worker.engine.draw_tensors import DrawTensors, logit_edits
from worker.engine.staging import Landing, Staging

Draw = Callable[[Tensor, DrawParams, LogitEdits | None], Drawn]

FAULTS = {
    NOT_FINITE: sampler.NOT_FINITE,
    ALL_BANNED: sampler.ALL_BANNED,
    OUTSIDE: "its parameters name tokens outside the vocabulary",
}


class DeviceSampler:
    def __init__(self, staging: Staging, draw: Draw) -> None:
        self._staging = staging
        self._draw = draw
        self._tensors = DrawTensors(staging)

    def draw(self, logits: Tensor, params: list[SampleParams]) -> Drawn | None:
        """logits: [samples, vocab] float32, which are changed. None if there are none."""
        if not params:
            return None
        return self._draw(logits, self._tensors.of(params), logit_edits(params, self._staging))

    def landing(self, logits: Tensor, drawn: Drawn | None, params: list[SampleParams]) -> "PendingSample | Sampled":
        """What was drawn, on its way to the host."""
        if drawn is None:
            return Sampled([], [])
        landing = self._staging.down(drawn.ids, drawn.faults, *self._logprobs(logits, drawn, params))
        return PendingSample(params, landing)

    def _logprobs(self, logits: Tensor, drawn: Drawn, params: list[SampleParams]) -> tuple[Tensor, ...]:
        """Of the rows that asked: [asked] of the sampled token, [asked, most] of the most likely ones, and their ids.
        Empty if no row asked.
        """
        asked = _asked(params)
        if not asked:
            return ()
        rows = self._staging.up(np.array(asked))
        divisors = [params[row].temperature if params[row].temperature >= TEMPERATURE_MIN else 1.0 for row in asked]
        values = logits[rows]
        scaled = values / self._staging.up(np.array(divisors, np.float32)).unsqueeze(1)
        totals = drawn.totals[rows].unsqueeze(1)
        chosen = scaled.gather(1, drawn.ids[rows].unsqueeze(1)) - totals
        hidden = (scaled < drawn.floors[rows].unsqueeze(1)) | (values <= BANNED)
        most = max(params[row].logprobs or 0 for row in asked)
        top = scaled.masked_fill(hidden, -math.inf).topk(min(most, logits.shape[1]))
        return chosen.squeeze(1), top.values - totals, top.indices


def _asked(params: list[SampleParams]) -> list[int]:
    return [row for row, p in enumerate(params) if p.logprobs is not None]


@dataclass(slots=True)
class PendingSample:
    """Tokens on their way to the host. Implements `worker.engine.runner.PendingStep`."""

    params: list[SampleParams]
    landing: Landing

    def result(self) -> Sampled:
        ids, faults, *logprobs = self.landing.wait()
        errors = {row: FAULTS[fault] for row, fault in enumerate(faults.tolist()) if fault}
        return Sampled(ids.tolist(), self._token_logprobs(logprobs), errors)

    def _token_logprobs(self, logprobs: list[Tensor]) -> list[TokenLogprobs | None]:
        of_rows: list[TokenLogprobs | None] = [None] * len(self.params)
        if not logprobs:
            return of_rows
        chosen, values, ids = (each.tolist() for each in logprobs)
        for row, logprob, row_values, row_ids in zip(_asked(self.params), chosen, values, ids, strict=True):
            count = self.params[row].logprobs
            pairs = zip(row_ids[:count], row_values[:count], strict=True)
            of_rows[row] = TokenLogprobs(logprob, tuple(pair for pair in pairs if pair[1] > -math.inf))
        return of_rows
