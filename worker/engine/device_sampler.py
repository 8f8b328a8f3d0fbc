"""Sampling where the logits are, and the tokens kept there for the step that follows.

Owns the tokens of the last step on the device, from which a step that was prepared without them takes its inputs.
Invariant: `resolve` sees what the step submitted before has sampled, and never an id outside the vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from worker.engine.batch import Sampled, SampleParams
from worker.engine.sampler import sample
from worker.engine.staging import Staging


class DeviceSampler:
    def __init__(self, staging: Staging, *, rows_max: int, vocab_size: int) -> None:
        self._staging = staging
        self._vocab_size = vocab_size
        self._last = torch.zeros(rows_max, dtype=torch.int64, device=staging.device)

    def resolve(self, ids: Tensor) -> Tensor:
        """ids: [tokens] as `Batch.ids` has them, on the device. What they stand for."""
        return torch.where(ids < 0, self._last[(~ids).clamp_min(0)], ids)

    def submit(self, logits: Tensor, params: list[SampleParams]) -> Sampled:
        """logits: [samples, vocab] float32."""
        if not params:
            return Sampled([], [])
        sampled = sample(logits, params)
        self._staging.into(self._last, np.array(sampled.ids, np.int64).clip(0, self._vocab_size - 1))
        return sampled
