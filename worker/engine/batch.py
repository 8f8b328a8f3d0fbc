"""The input and output of a runner for one step of the engine. Plain numpy; no torch here.

All sequences of a step are packed one after the other, without padding: sequence `i` owns the tokens
`query_start[i] : query_start[i + 1]`. Decode (one token), chunked prefill and whole prompts mix freely.

    |<------- context_lens[i] ------->|
    | already in the KV pool |  query |      query = query_start[i + 1] - query_start[i] new tokens
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import repeat
from operator import add
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from worker.engine.token_counts import TokenCounts


@dataclass(slots=True, frozen=True, eq=False)
class LogitBias:
    """Numbers that are added to the logits of some tokens, each listed once. Created once per request."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]

    @classmethod
    def of(cls, pairs: Iterable[tuple[int, float]]) -> "LogitBias":
        biases = dict(pairs)
        return cls(np.array(list(biases), np.int64), np.array(list(biases.values()), np.float32))


Manner = tuple[Any, ...]  # all fields of `SampleParams` but the position, in their order


class SampleParams(NamedTuple):
    """How one row of logits becomes a token. The draw depends on (seed, choice, position) and nothing else."""

    position: int  # index of the token being drawn, counted from the start of the prompt
    temperature: float  # 0 is arg max
    top_p: float
    seed: int  # 64 bits
    choice: int
    bias: LogitBias | None = None
    logprobs: int | None = None  # alternatives wanted; 0 = the chosen token only; None = none
    top_k: int = 0  # 0 is off, and so is one above the vocabulary
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seen: TokenCounts | None = None  # what the penalties count; None if there are none
    banned: frozenset[int] = frozenset()  # tokens that cannot be drawn

    @classmethod
    def of_rows(cls, positions: Iterable[int], manners: Iterable[Manner]) -> "list[SampleParams]":
        """`SampleParams(position, *manner)` for each row, without a Python call for each: a step has hundreds of
        rows.
        """
        return list(map(tuple.__new__, repeat(cls), map(add, zip(positions, strict=False), manners)))


@dataclass(slots=True)
class Batch:
    """One step over `sequences` sequences and `tokens` packed tokens."""

    ids: NDArray[np.int64]  # [tokens] below 0: `~row`, what the step before samples in this row (`Runner.steps_ahead`)
    positions: NDArray[np.int64]  # [tokens] index of each token in its sequence
    slots: NDArray[np.int64]  # [tokens] block id * block_size + offset: where its K and V go
    query_start: NDArray[np.int32]  # [sequences + 1]
    context_lens: NDArray[np.int32]  # [sequences] tokens in the KV pool after this step's write
    block_tables: NDArray[np.int32]  # [sequences, blocks_max] padded with 0, the null block
    rows: NDArray[np.int32]  # [sequences] unique while a sequence runs, from 0: devices identify it by this
    sample_rows: NDArray[np.int64]  # [samples] packed indices of the tokens whose logits are sampled
    samples: list[SampleParams]  # [samples]
    decodes: int = 0  # how many sequences, the first ones, compute a token they generated, the others prompts


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log-probabilities (nats) at one position, under the distribution that the token was drawn from."""

    logprob: float
    top: tuple[tuple[int, float], ...]  # (token id, logprob), most likely first; only tokens that could be drawn


@dataclass(slots=True)
class Sampled:
    """One token per entry of `Batch.samples`, in order. A row in `errors` has no valid token."""

    ids: list[int]
    logprobs: list[TokenLogprobs | None]
    errors: dict[int, str] = field(default_factory=dict[int, str])

    def result(self) -> "Sampled":
        """For runners that have computed the step when `submit` returns: the step is its own result."""
        return self
