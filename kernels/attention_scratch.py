"""Scratch memory for the splits of a long context's attention, until they are combined.

Owns the buffers, their sizes, and the length of a split. Knows nothing of kernels, sequences or a model. Invariant: a
split is `SPLIT_KEYS` keys of a sequence, counted from its first token, whatever else is in the batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SPLIT_KEYS = 512


@dataclass(slots=True, frozen=True)
class AttentionScratch:
    """Used by every layer of a step in turn. Never read before it is written, so it needs no clearing."""

    out: Tensor  # [sequences_max, heads, splits_max, head_dim] float32: the attention over one split alone
    weight_log2: Tensor  # [sequences_max, heads, splits_max] float32: log2 of the sum of exp(score) over the split

    @classmethod
    def of(
        cls, sequences_max: int, context_max: int, heads: int, head_dim: int, device: torch.device
    ) -> "AttentionScratch":
        """For `sequences_max` decoding sequences of at most `context_max` tokens; see `bytes_needed`."""
        shape = (sequences_max, heads, splits(context_max))
        return cls(
            out=torch.empty(*shape, head_dim, dtype=torch.float32, device=device),
            weight_log2=torch.empty(shape, dtype=torch.float32, device=device),
        )

    @staticmethod
    def bytes_needed(sequences_max: int, context_max: int, heads: int, head_dim: int) -> int:
        """256 sequences of up to 8,192 tokens, 32 heads of 128: 64.5 MiB."""
        return sequences_max * heads * splits(context_max) * (head_dim + 1) * 4


def splits(context: int) -> int:
    """How many splits a context has; an empty one has one, without keys."""
    return max(1, -(-context // SPLIT_KEYS))
