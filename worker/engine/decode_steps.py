"""Decode steps, one token a sequence, at a few batch sizes that were recorded beforehand.

Owns the buffers that recorded steps read and write, and the choice of a size: a batch runs at the smallest size that
holds it, padded with further rows. A recorded step prepares its own batch on the device; the host tells it only which
rows are in it, and only when they change. Invariant: a padded row has slot -1 and no context, so it writes nothing to
the pool and attends to nothing, and changes no other row.
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
    """At most twice what a batch needs below 16 rows, at most 15 rows more up to 256: reading the weights takes longer
    than computing so few, so padding costs next to nothing. Above, a quarter more. 20 sizes for 256 rows, 32 for 1,024.
    """
    sizes = [1, 2, 4, 8, *range(FINE, COARSE, FINE), *range(COARSE, rows_max, COARSE_STRIDE)]
    return [size for size in sizes if size < rows_max] + [rows_max]


class DecodeSteps:
    """`forward` computes a step that lies in StepTensors; `capture` must have been called before `run`."""

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
        # What the host says, and said last.
        self._told = BatchRows(
            rows=torch.full((rows_max,), -1, dtype=torch.int32, device=device),
            query_start=torch.arange(rows_max + 1, dtype=torch.int32, device=device),
            given_ids=torch.full((rows_max,), -1, dtype=torch.int64, device=device),
        )
        self._last = _NOTHING
        # What the device makes of it. Logits have a place of their own: kept in a graph's memory, each size would take
        # its own.
        self._batch = PreparedBatch.of(rows_max, rows_max, blocks_max, device)
        self._sample_rows = torch.arange(rows_max, dtype=torch.int64, device=device)
        self._logits = torch.empty(rows_max, vocab_size, device=device)

    def capture(self, graphs: Graphs) -> None:
        """Largest first: the others then find room in the memory that it took."""
        for size in reversed(self.sizes):
            told = self._part(size)
            self._runs[size] = graphs.capture(self._step(size, told)), told

    def takes(self, batch: Batch) -> bool:
        rows = len(batch.context_lens)
        return rows == len(batch.ids) and rows <= self.sizes[-1]

    def run(self, batch: Batch) -> tuple[BatchRows, Tensor]:
        """What the device was told, and the logits of `batch.sample_rows`, [samples, vocab]. Both are overwritten by
        the next step.
        """
        size = next(size for size in self.sizes if size >= len(batch.ids))
        self._tell(batch, size)
        run, told = self._runs[size]
        logits = run()
        if len(batch.sample_rows) == len(batch.ids):  # every row, in order
            return told, logits[: len(batch.ids)]
        return told, logits[self._staging.up(batch.sample_rows)]

    def _tell(self, batch: Batch, size: int) -> None:
        rows, ids = np.full(size, -1, np.int32), np.full(size, -1, np.int64)
        rows[: len(batch.rows)] = batch.rows
        ids[: len(batch.ids)] = given(batch.ids)
        rows_before, ids_before = self._last
        self._last = _NOTHING  # should telling fail, all of it is told again
        if not np.array_equal(rows, rows_before):
            self._staging.into(self._told.rows, rows)
        if not np.array_equal(ids, ids_before):
            self._staging.into(self._told.given_ids, ids)
        self._last = rows, ids

    def _part(self, size: int) -> BatchRows:
        told = self._told
        return BatchRows(told.rows[:size], told.query_start[: size + 1], told.given_ids[:size])

    def _step(self, size: int, told: BatchRows) -> Run:
        whole = self._batch
        batch = PreparedBatch(
            whole.ids[:size],
            whole.positions[:size],
            whole.slots[:size],
            whole.context_lens[:size],
            whole.block_tables[:size],
        )
        step = step_of(batch, told, self._sample_rows[:size])
        step.queries_max, step.logits = 1, self._logits[:size]

        def run() -> Tensor:
            self._rows.prepare(told, batch)
            return self._forward(step)

        return run


def given(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """`Batch.ids` as `BatchRows.given_ids`: what the host does not know is the row's last token."""
    return np.maximum(ids, -1)
