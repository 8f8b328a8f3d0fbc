"""Warm-up batches that together contain every kind of work, so that a runner compiles whatever a later step could need.

Kernels are compiled per type and fixed stride, and torch's launches per kind of sampling, never per number of tokens or
sequences; the largest and smallest sizes are run all the same. Invariant: rows write only to the null block, which is
never read.
"""

from collections.abc import Iterator

import numpy as np

from worker.engine.batch import Batch, LogitBias, SampleParams
from worker.engine.token_counts import TokenCounts

_KINDS = 4  # of sampling; a decode step of each size has as many of them as it has rows
_LOGPROBS = 20  # the API's maximum of alternatives


def warm_batches(
    *,
    decode_rows: list[int],
    tokens_max: int,
    sequences_max: int,
    context_length: int,
    block_size: int,
    vocab_size: int,
) -> Iterator[Batch]:
    """Decode steps of these sizes, prompts from one token to the whole budget, and the step that needs the most
    memory.
    """
    for rows in decode_rows:
        yield _batch([1] * rows, block_size, vocab_size)
    longest = min(tokens_max, context_length - 1)
    for tokens in (1, 2, 15, 16, 17):
        if tokens <= longest:
            yield _batch([tokens], block_size, vocab_size)
    yield _batch([longest] * max(min(tokens_max // longest, sequences_max), 1), block_size, vocab_size)
    several = min(sequences_max, 3, tokens_max // 2)
    if several > 1:
        yield _batch([1] * (several - 1) + [2], block_size, vocab_size)
    yield _largest(min(sequences_max, tokens_max), tokens_max, longest, block_size, vocab_size)


def _largest(sequences: int, tokens_max: int, longest: int, block_size: int, vocab_size: int) -> Batch:
    """As many sequences as there can be, with as many tokens as they can have, and log-probabilities of each."""
    lengths, left = [1] * sequences, tokens_max - sequences
    for index in range(sequences):
        more = min(left, longest - 1)
        lengths[index] += more
        left -= more
    batch = _batch(lengths, block_size, vocab_size)
    batch.samples = [params._replace(logprobs=_LOGPROBS) for params in batch.samples]
    return batch


def _batch(lengths: list[int], block_size: int, vocab_size: int) -> Batch:
    tokens = sum(lengths)
    query_start = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=query_start[1:])
    positions = np.concatenate([np.arange(length) for length in lengths])
    return Batch(
        ids=np.zeros(tokens, np.int64),
        positions=positions,
        slots=positions % block_size,
        query_start=query_start,
        context_lens=np.array(lengths, np.int32),
        block_tables=np.zeros((len(lengths), -(-max(lengths) // block_size)), np.int32),
        rows=np.arange(len(lengths), dtype=np.int32),
        sample_rows=query_start[1:].astype(np.int64) - 1,
        samples=[_params(row, vocab_size) for row in range(len(lengths))],
    )


def _params(row: int, vocab_size: int) -> SampleParams:
    """Arg max, a plain draw, a truncated one, and one with everything, in turn."""
    kind, last = row % _KINDS, vocab_size - 1
    cut, whole = kind == 2, kind == 3
    return SampleParams(
        temperature=0.0 if kind == 0 else 1.0,
        top_p=0.9 if cut else 1.0,
        seed=1,
        choice=0,
        position=1,
        bias=LogitBias.of([(last, 1.0)]) if whole else None,
        logprobs=2 if whole else None,
        top_k=5 if cut else 0,
        min_p=0.1 if cut else 0.0,
        repetition_penalty=1.1 if whole else 1.0,
        presence_penalty=0.1 if whole else 0.0,
        seen=TokenCounts([0]) if whole else None,
        banned=frozenset({last}) if whole else frozenset(),
    )
