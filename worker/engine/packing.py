"""A schedule as the arrays that a runner takes. Sequences are packed one after the other, without padding."""

import numpy as np
from numpy.typing import NDArray

from worker.engine.batch import Batch, SampleParams
from worker.engine.scheduler import Scheduled
from worker.engine.sequence import Sequence


def pack(entries: list[Scheduled], block_size: int) -> tuple[Batch, list[Sequence]]:
    """The batch, and the sequences of its samples in their order: those whose gap this step closes. What a chunk that
    ends before its prompt does would predict is known already.
    """
    starts: list[int] = []
    tables: list[NDArray[np.int32]] = []
    ids: list[int] = []
    sample_rows: list[int] = []
    samples: list[SampleParams] = []
    sampled: list[Sequence] = []
    for sequence, tokens in entries:
        start = sequence.num_computed
        end = start + tokens
        starts.append(start)
        tables.append(sequence.table.first(-(-end // block_size)))
        ids += sequence.tokens[start:end]
        if end == len(sequence.tokens):
            sample_rows.append(len(ids) - 1)
            samples.append(sequence.next_sample())
            sampled.append(sequence)

    computed = np.array(starts, dtype=np.int64)
    counts = np.array([tokens for _, tokens in entries], dtype=np.int64)
    query_start = np.zeros(len(entries) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    context_lens = (computed + counts).astype(np.int32)
    block_counts = -(-context_lens // block_size)
    columns = np.arange(block_counts.max())
    block_tables = np.zeros((len(entries), len(columns)), dtype=np.int32)
    block_tables[columns < block_counts[:, None]] = np.concatenate(tables)
    member = np.repeat(np.arange(len(entries)), counts)  # [tokens] whose token it is
    positions = np.arange(len(ids)) - query_start[member] + computed[member]
    blocks_of_tokens = block_tables[member, positions // block_size].astype(np.int64)  # int32 would overflow as a slot
    batch = Batch(
        ids=np.array(ids, dtype=np.int64),
        positions=positions,
        slots=blocks_of_tokens * block_size + positions % block_size,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=block_tables,
        sample_rows=np.array(sample_rows, dtype=np.int64),
        samples=samples,
    )
    return batch, sampled
