"""A runner without a model: deterministic tokens at a set cost. It replaces the torch and Triton runners in a real
worker process, so that everything around the model can be run and measured on any machine.

A token is a function of (seed, choice, position), at temperature 0 of the last two alone, so a request gives the same
output in any batch and on any worker. It never ends a text by itself. With the oracle on, it also reads each context
back through the block table, and the token depends on it: one wrong slot anywhere shows as a different output.
"""

import time
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from worker.engine.batch import Batch, Sampled, SampleParams, TokenLogprobs

_FORCE = 100.0  # the API's largest bias, which forces a token
_GREEDY_BELOW = 1e-3  # the same as in the real sampler
_MASK = (1 << 64) - 1


class FakeRunner:
    """Implements `worker.engine.runner.Runner`. `ids` are the tokens to choose from; `step_us` and `token_us` are the
    time of a step and of each of its tokens. A bias of 100 forces a token, one of -100 bans it, others have no effect.
    Banned tokens (those that end a text, until min_tokens) are never chosen; penalties and truncation have no effect.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        blocks_total: int,
        block_size: int,
        context_length: int,
        ids: Sequence[int],
        step_us: int = 0,
        token_us: int = 0,
        oracle: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if not ids or min(ids) < 0 or max(ids) >= vocab_size:
            raise ValueError(f"ids must be of a vocabulary of {vocab_size}")
        self.vocab_size = vocab_size
        self.blocks_total = blocks_total
        self.block_size = block_size
        self.context_length = context_length
        self.steps_ahead = 0
        self._ids = tuple(ids)
        self._step_us = step_us
        self._token_us = token_us
        self._oracle = oracle
        self._sleep = sleep
        # The KV pool: the token in each slot, and its position. -1 is empty.
        self._kv_ids = np.full(blocks_total * block_size, -1, dtype=np.int64)
        self._kv_positions = np.full(blocks_total * block_size, -1, dtype=np.int64)

    def submit(self, batch: Batch) -> Sampled:
        self._kv_ids[batch.slots] = batch.ids
        self._kv_positions[batch.slots] = batch.positions
        cost_us = self._step_us + self._token_us * len(batch.ids)
        if cost_us:
            self._sleep(cost_us / 1e6)
        contexts = self._read_contexts(batch) if self._oracle else [0] * len(batch.samples)
        sampled = Sampled(ids=[], logprobs=[])
        for row, (params, context) in enumerate(zip(batch.samples, contexts, strict=True)):
            token = self._draw(params, context)
            if token is None:
                sampled.errors[row] = "every token is banned"
                token = self._ids[0]
            sampled.ids.append(token)
            sampled.logprobs.append(self._logprobs(token, params.logprobs))
        return sampled

    def close(self) -> None:
        pass

    def _read_contexts(self, batch: Batch) -> list[int]:
        """A checksum of the context of each sample, read as a model reads it: through the block table."""
        checksums: list[int] = []
        members = np.searchsorted(batch.query_start, batch.sample_rows, side="right") - 1
        for member in members.tolist():
            positions = np.arange(int(batch.context_lens[member]))
            slots = batch.block_tables[member, positions // self.block_size].astype(np.int64)
            slots = slots * self.block_size + positions % self.block_size
            assert (self._kv_positions[slots] == positions).all(), "a block table leads to another sequence's slots"
            checksums.append(zlib.crc32(self._kv_ids[slots].tobytes()))
        return checksums

    def _draw(self, params: SampleParams, context: int) -> int | None:
        """None if every token is banned."""
        banned = set(params.banned)
        if params.bias is not None:
            biases = dict(zip(params.bias.ids.tolist(), params.bias.values.tolist(), strict=True))
            token = max(biases, key=biases.__getitem__)
            if biases[token] >= _FORCE and token not in banned:
                return token
            banned |= {token for token, bias in biases.items() if bias <= -_FORCE}
        seed = params.seed if params.temperature >= _GREEDY_BELOW else 0
        start = _mix(_mix(_mix(seed + context) + params.choice) + params.position)
        for step in range(len(self._ids)):
            token = self._ids[(start + step) % len(self._ids)]
            if token not in banned:
                return token
        return None

    def _logprobs(self, token: int, count: int | None) -> TokenLogprobs | None:
        """The token at -0.5 and others far below, so that the shape is a real model's."""
        if count is None:
            return None
        others = [other for other in self._ids[: count + 1] if other != token]
        top = [(token, -0.5), *((other, -5.0 - rank) for rank, other in enumerate(others))]
        return TokenLogprobs(-0.5, tuple(top[:count]))


def _mix(value: int) -> int:
    """The finalizer of SplitMix64 (Steele, Lea, Flood 2014): every bit of the input moves every bit of the output."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
