"""Sampling where the logits are, without waiting for it, and the tokens kept there for the step that follows.

Owns the tokens of the last step on the device, from which a step that was prepared without them takes its inputs. How
tokens are drawn belongs to the kernel. Invariant: `resolve` sees what the step submitted before has sampled, and never
an id outside the vocabulary.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.sampling import ALL_BANNED, BANNED, NOT_FINITE, OUTSIDE, TEMPERATURE_MIN, Drawn, DrawParams, LogitEdits
from worker.engine import sampler
from worker.engine.batch import Sampled, SampleParams, TokenLogprobs
from worker.engine.draw_tensors import draw_params, logit_edits
from worker.engine.staging import Landing, Staging

Draw = Callable[[Tensor, DrawParams, LogitEdits | None], Drawn]

FAULTS = {
    NOT_FINITE: sampler.NOT_FINITE,
    ALL_BANNED: sampler.ALL_BANNED,
    OUTSIDE: "its parameters name tokens outside the vocabulary",
}


class DeviceSampler:
    def __init__(self, staging: Staging, draw: Draw, *, rows_max: int) -> None:
        self._staging = staging
        self._draw = draw
        self._last = torch.zeros(rows_max, dtype=torch.int64, device=staging.device)

    def resolve(self, ids: Tensor) -> Tensor:
        """ids: [tokens] as `Batch.ids` has them, on the device. What they stand for."""
        return torch.where(ids < 0, self._last[(~ids).clamp_min(0)], ids)

    def submit(self, logits: Tensor, params: list[SampleParams]) -> "PendingSample | Sampled":
        """logits: [samples, vocab] float32, which are changed."""
        if not params:
            return Sampled([], [])
        drawn = self._draw(logits, draw_params(params, self._staging), logit_edits(params, self._staging))
        self._last[: len(params)].copy_(drawn.ids)
        return PendingSample(
            params, self._staging.down(drawn.ids, drawn.faults, *self._logprobs(logits, drawn, params))
        )

    def _logprobs(self, logits: Tensor, drawn: Drawn, params: list[SampleParams]) -> tuple[Tensor, ...]:
        """Of the rows that asked: [asked] of the token drawn, [asked, most] of the most likely, and their ids. Nothing
        if no row did.
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
        return Sampled(ids.tolist(), self._told(logprobs), errors)

    def _told(self, logprobs: list[Tensor]) -> list[TokenLogprobs | None]:
        told: list[TokenLogprobs | None] = [None] * len(self.params)
        if not logprobs:
            return told
        chosen, values, ids = (each.tolist() for each in logprobs)
        for row, logprob, row_values, row_ids in zip(_asked(self.params), chosen, values, ids, strict=True):
            count = self.params[row].logprobs
            pairs = zip(row_ids[:count], row_values[:count], strict=True)
            told[row] = TokenLogprobs(logprob, tuple(pair for pair in pairs if pair[1] > -math.inf))
        return told
