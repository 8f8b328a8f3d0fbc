"""A schedule as the arrays that a runner takes. Sequences are packed one after the other, without padding."""

import numpy as np

from worker.engine.batch import Batch, SampleParams
from worker.engine.blocks import BlockTables
from worker.engine.schedule import Schedule
from worker.engine.sequence import Sequence


def pack(schedule: Schedule, tables: BlockTables, block_size: int) -> tuple[Batch, list[Sequence]]:
    """The batch, and the sequences of its samples, in order: those whose last known token is in this step. A chunk that
    ends before its prompt does needs no sample.
    """
    sequences = schedule.sequences()
    decodes = len(schedule.decodes)
    ids = [sequence.tokens[-1] for sequence in schedule.decodes]
    sample_rows = list(range(decodes))
    members = list(range(decodes))  # [samples] the sequence of each
    for member, (sequence, tokens) in enumerate(schedule.chunks, start=decodes):
        end = sequence.num_computed + tokens
        ids += sequence.tokens[sequence.num_computed : end]
        if end == len(sequence.tokens):
            sample_rows.append(len(ids) - 1)
            members.append(member)
    sampled = [sequences[member] for member in members]

    rows, counts = schedule.rows(), schedule.counts()
    computed = tables.computed[rows]
    query_start = np.zeros(len(sequences) + 1, dtype=np.int32)
    np.cumsum(counts, out=query_start[1:])
    context_lens = (computed + counts).astype(np.int32)
    block_counts = -(-context_lens // block_size)
    block_tables = tables.matrix[rows, : block_counts.max()]
    for row in range(decodes, len(sequences)):
        block_tables[row, block_counts[row] :] = 0  # blocks that are held, but not read in this step
    member = np.repeat(np.arange(len(sequences)), counts)  # [tokens] the sequence of each
    positions = np.arange(len(ids)) - query_start[member] + computed[member]
    blocks_of_tokens = block_tables[member, positions // block_size].astype(np.int64)  # int32 would overflow as a slot
    batch = Batch(
        ids=np.array(ids, dtype=np.int64),
        positions=positions,
        slots=blocks_of_tokens * block_size + positions % block_size,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=block_tables,
        rows=rows.astype(np.int32),
        sample_rows=np.array(sample_rows, dtype=np.int64),
        samples=SampleParams.of_rows(
            context_lens[members].tolist(), [sequence.manner or sequence.next_manner() for sequence in sampled]
        ),
        decodes=decodes,
    )
    return batch, sampled
