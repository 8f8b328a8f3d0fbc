"""What one engine step asks of a runner, and what comes back. Plain numpy; no torch here.

All sequences of a step are packed one after the other, without padding: sequence `i` owns the tokens
`query_start[i] : query_start[i + 1]`. Decode (one token), chunked prefill and whole prompts mix freely.

    |<------- context_lens[i] ------->|
    | already in the KV pool |  query |      query = query_start[i + 1] - query_start[i] new tokens
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(slots=True)  # not frozen: one is made per sequence and step, and frozen ones take four times as long to make
class SampleParams:
    """How one row of logits becomes a token. The draw depends on (seed, choice, position) and nothing else."""

    temperature: float  # 0 is arg max
    top_p: float
    seed: int  # 64 bits
    choice: int
    position: int  # index of the token being drawn, counted from the start of the prompt
    bias: tuple[tuple[int, float], ...] = ()  # (token id, added to the logit)
    logprobs: int | None = None  # alternatives wanted; 0 = the chosen token only; None = none


@dataclass(slots=True)
class Batch:
    """One step over `sequences` sequences and `tokens` packed tokens."""

    ids: NDArray[np.int64]  # [tokens]
    positions: NDArray[np.int64]  # [tokens] index of each token in its sequence
    slots: NDArray[np.int64]  # [tokens] block id * block_size + offset: where its K and V go
    query_start: NDArray[np.int32]  # [sequences + 1]
    context_lens: NDArray[np.int32]  # [sequences] tokens in the KV pool once this step has written
    block_tables: NDArray[np.int32]  # [sequences, blocks_max] padded with 0, the null block
    sample_rows: NDArray[np.int64]  # [samples] packed token indices whose logits are wanted
    samples: list[SampleParams]  # [samples]


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log-probabilities (nats) under the unmodified distribution at one position."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most likely first


@dataclass(slots=True)
class Sampled:
    """One token per entry of `Batch.samples`, in order. A row in `errors` has no valid token (NaN logits)."""

    ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, str] = field(default_factory=dict[int, str])
