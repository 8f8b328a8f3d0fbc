"""Decode steps, one token per sequence, at a few batch sizes that were recorded beforehand.

Owns the buffers that recorded steps read and write, and the choice of a size: a batch runs at the smallest size that
holds it, padded with additional rows. A recorded step prepares its own batch on the device; the host sends only which
rows are in it, and only when they change. Invariant: a padded row has slot -1 and no context, so it writes nothing to
the pool, attends to nothing, and changes no other row.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.device_batch import BatchRows, PreparedBatch
from worker.engine.batch import Batch
from worker.engine.device_rows import DeviceRows, step_of
from worker.engine.graphs import Graphs, Run
from worker.engine.staging import Staging
from worker.models.decoder import StepTensors

FINE, COARSE = 16, 256  # sizes are powers of two up to FINE, then FINE apart up to COARSE, then 64
COARSE_STRIDE = 64
_NOTHING: tuple[NDArray[np.int32], NDArray[np.int64]] = (np.zeros(0, np.int32), np.zeros(0, np.int64))


def decode_sizes(rows_max: int) -> list[int]:
    """At most twice as many rows as the batch has below 16, at most 15 more up to 256, and a quarter more above.
    Padding costs almost nothing, since reading the weights takes longer than computing so few rows. 20 sizes for 256
    rows, 32 for 1,024.
    """
    sizes = [1, 2, 4, 8, *range(FINE, COARSE, FINE), *range(COARSE, rows_max, COARSE_STRIDE)]
    return [size for size in sizes if size < rows_max] + [rows_max]


class DecodeSteps:
    """`forward` computes a step from StepTensors. Call `capture` before `run`."""

    def __init__(
        self,
        forward: Callable[[StepTensors], Tensor],
        staging: Staging,
        rows: DeviceRows,
        *,
        rows_max: int,
        blocks_max: int,
        vocab_size: int,
    ) -> None:
        device = staging.device
        self._forward = forward
        self._staging = staging
        self._rows = rows
        self.sizes = decode_sizes(rows_max)
        self._runs: dict[int, tuple[Run, BatchRows]] = {}
        # What the host sends, and what it sent last.
        self._batch_rows = BatchRows(
            rows=torch.full((rows_max,), -1, dtype=torch.int32, device=device),
            query_start=torch.arange(rows_max + 1, dtype=torch.int32, device=device),
            given_ids=torch.full((rows_max,), -1, dtype=torch.int64, device=device),
        )
        self._last = _NOTHING
        # What the device computes from it. Logits have a buffer outside the graphs' memory, where each size would take
        # one of its own.
        self._batch = PreparedBatch.of(rows_max, rows_max, blocks_max, device)
        self._sample_rows = torch.arange(rows_max, dtype=torch.int64, device=device)
        self._logits = torch.empty(rows_max, vocab_size, device=device)

    def capture(self, graphs: Graphs) -> None:
        """Largest size first: the others then fit into the memory that it took."""
        for size in reversed(self.sizes):
            batch_rows = self._part(size)
            self._runs[size] = graphs.capture(self._step(size, batch_rows)), batch_rows

    def takes(self, batch: Batch) -> bool:
        rows = len(batch.context_lens)
        return rows == len(batch.ids) and rows <= self.sizes[-1]

    def run(self, batch: Batch) -> tuple[BatchRows, Tensor]:
        """The batch's rows on the device, and the logits of `batch.sample_rows`, [samples, vocab]. Both are overwritten
        by the next step.
        """
        size = next(size for size in self.sizes if size >= len(batch.ids))
        self._send(batch, size)
        run, batch_rows = self._runs[size]
        logits = run()
        if len(batch.sample_rows) == len(batch.ids):  # every row, in order
            return batch_rows, logits[: len(batch.ids)]
        return batch_rows, logits[self._staging.up(batch.sample_rows)]

    def _send(self, batch: Batch, size: int) -> None:
        rows, ids = np.full(size, -1, np.int32), np.full(size, -1, np.int64)
        rows[: len(batch.rows)] = batch.rows
        ids[: len(batch.ids)] = given(batch.ids)
        rows_before, ids_before = self._last
        self._last = _NOTHING  # if sending fails, everything is sent again
        if not np.array_equal(rows, rows_before):
            self._staging.into(self._batch_rows.rows, rows)
        if not np.array_equal(ids, ids_before):
            self._staging.into(self._batch_rows.given_ids, ids)
        self._last = rows, ids

    def _part(self, size: int) -> BatchRows:
        batch_rows = self._batch_rows
        return BatchRows(batch_rows.rows[:size], batch_rows.query_start[: size + 1], batch_rows.given_ids[:size])

    def _step(self, size: int, batch_rows: BatchRows) -> Run:
        whole = self._batch
        batch = PreparedBatch(
            whole.ids[:size],
            whole.positions[:size],
            whole.slots[:size],
            whole.context_lens[:size],
            whole.block_tables[:size],
        )
        step = step_of(batch, batch_rows, self._sample_rows[:size], decodes=size)
        step.queries_max, step.logits = 1, self._logits[:size]

        def run() -> Tensor:
            self._rows.prepare(batch_rows, batch)
            return self._forward(step)

        return run


def given(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """`Batch.ids` as `BatchRows.given_ids`: what the host does not know is the row's last token."""
    return np.maximum(ids, -1)
