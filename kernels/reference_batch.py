"""The preparation of a batch written plainly, one sequence after the other: what `device_batch` must equal."""

from torch import Tensor

from kernels.device_batch import COMPUTED, BatchRows, PreparedBatch, SequenceRows


def patch_rows(rows: SequenceRows, patches: Tensor) -> None:
    for row, column, value in patches.tolist():
        if row < 0:
            continue
        if column == COMPUTED:
            rows.computed[row] = value
        else:
            rows.block_tables[row, column] = value


def prepare_batch(rows: SequenceRows, batch: BatchRows, out: PreparedBatch, *, block_size: int) -> None:
    for tensor in (out.ids, out.positions, out.context_lens, out.block_tables):
        tensor.zero_()
    out.slots.fill_(-1)
    for sequence, row in enumerate(batch.rows.tolist()):
        if row < 0:
            continue
        start, end = batch.query_start[sequence : sequence + 2].tolist()
        computed = int(rows.computed[row])
        table: list[int] = rows.block_tables[row].tolist()
        for token in range(start, end):
            position = computed + token - start
            given = int(batch.given_ids[token])
            out.ids[token] = rows.last_ids[row] if given < 0 else given
            out.positions[token] = position
            out.slots[token] = table[position // block_size] * block_size + position % block_size
        context = computed + end - start
        out.context_lens[sequence] = context
        used = -(-context // block_size)
        out.block_tables[sequence, :used] = rows.block_tables[row, :used]


def commit_batch(rows: SequenceRows, batch: BatchRows, drawn: Tensor, sample_of: Tensor) -> None:
    for sequence, row in enumerate(batch.rows.tolist()):
        if row < 0:
            continue
        rows.computed[row] += batch.query_start[sequence + 1] - batch.query_start[sequence]
        if sample_of[sequence] >= 0:
            rows.last_ids[row] = drawn[sample_of[sequence]]
