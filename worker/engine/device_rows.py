"""The state of each running sequence on the device, so that a step needs little from the host.

Owns the rows on the device and the host's knowledge of their contents. For each step the host sends only differences:
for a decode step after another one, only new blocks. Knows no model and no schedule. Invariant: after `send`, the
device's rows of a batch's sequences are what the batch says, whatever they were before. What the host assumes about
them was written by an earlier launch, and launches run in order.
"""

from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.device_batch import COMPUTED, BatchRows, PreparedBatch, SequenceRows
from worker.engine.batch import Batch
from worker.engine.staging import Staging
from worker.models.decoder import StepTensors


class Preparation(Protocol):
    """`kernels.device_batch`, or `kernels.reference_batch` where no kernel runs."""

    def patch_rows(self, rows: SequenceRows, patches: Tensor) -> None: ...

    def prepare_batch(self, rows: SequenceRows, batch: BatchRows, out: PreparedBatch, *, block_size: int) -> None: ...

    def commit_batch(self, rows: SequenceRows, batch: BatchRows, drawn: Tensor, sample_of: Tensor) -> None: ...


class DeviceRows:
    """Call `send`, `prepare` and `commit` in this order for each step; `prepare` may be recorded."""

    def __init__(
        self, staging: Staging, preparation: Preparation, *, rows_max: int, blocks_max: int, block_size: int
    ) -> None:
        self._staging = staging
        self._preparation = preparation
        self._block_size = block_size
        self._rows = SequenceRows.of(rows_max, blocks_max, staging.device)
        self._every = torch.arange(rows_max, dtype=torch.int32, device=staging.device)
        self._no_ids = torch.zeros(1, dtype=torch.int64, device=staging.device)
        self._computed: NDArray[np.int32] = np.zeros(rows_max, np.int32)  # the device's values, as in `SequenceRows`
        self._tables: NDArray[np.int32] = np.zeros((rows_max, blocks_max), np.int32)
        self._sampled: NDArray[np.int32] = np.zeros(0, np.int32)  # rows that the previous step sampled, in order

    def send(self, batch: Batch) -> None:
        unknown = np.flatnonzero(batch.ids < 0)
        members = np.searchsorted(batch.query_start, unknown, side="right") - 1
        assert (self._sampled[~batch.ids[unknown]] == batch.rows[members]).all(), "another sequence's token"
        computed = batch.context_lens - np.diff(batch.query_start)
        tables = batch.block_tables
        patches = self._patches(batch.rows, computed, tables)
        if len(patches):
            self._preparation.patch_rows(self._rows, self._staging.up(patches))
            self._computed[batch.rows] = computed
            self._tables[batch.rows, : tables.shape[1]] = tables

    def prepare(self, batch_rows: BatchRows, out: PreparedBatch) -> None:
        self._preparation.prepare_batch(self._rows, batch_rows, out, block_size=self._block_size)

    def commit(self, batch: Batch, batch_rows: BatchRows, drawn: Tensor | None) -> None:
        """batch_rows: `batch` on the device, perhaps padded. drawn: [samples] ids; None if nothing was sampled."""
        members = np.searchsorted(batch.query_start, batch.sample_rows, side="right") - 1
        ids = self._no_ids if drawn is None else drawn
        self._preparation.commit_batch(
            self._rows, batch_rows, ids, self._sample_of(members, len(batch.rows), batch_rows)
        )
        self._computed[batch.rows] = batch.context_lens
        self._sampled = batch.rows[members]

    def _patches(
        self, rows: NDArray[np.int32], computed: NDArray[np.int32], tables: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """[count, 3] as `device_batch.patch_rows` takes them."""
        moved = np.flatnonzero(self._computed[rows] != computed)
        # Flat: in two dimensions, numpy takes fifty times as long to find that nothing changed.
        new, columns = divmod(np.flatnonzero(self._tables[rows, : tables.shape[1]] != tables), tables.shape[1])
        patches = np.empty((len(moved) + len(new), 3), np.int32)
        lengths, blocks = patches[: len(moved)], patches[len(moved) :]
        lengths[:, 0], lengths[:, 1], lengths[:, 2] = rows[moved], COMPUTED, computed[moved]
        blocks[:, 0], blocks[:, 1], blocks[:, 2] = rows[new], columns, tables[new, columns]
        return patches

    def _sample_of(self, members: NDArray[np.int64], sequences: int, batch_rows: BatchRows) -> Tensor:
        """[sequences on the device] which sample is each one's; -1 for none."""
        if len(members) == sequences:  # every one, in order
            return self._every[: len(batch_rows.rows)]
        sample_of = np.full(len(batch_rows.rows), -1, np.int32)
        sample_of[members] = np.arange(len(members))
        return self._staging.up(sample_of)


def step_of(batch: PreparedBatch, batch_rows: BatchRows, sample_rows: Tensor, *, decodes: int) -> StepTensors:
    """What a decoder takes; sample_rows: [samples] int64; decodes: as in `Batch`."""
    return StepTensors(
        ids=batch.ids,
        positions=batch.positions,
        slots=batch.slots,
        query_start=batch_rows.query_start,
        context_lens=batch.context_lens,
        block_tables=batch.block_tables,
        sample_rows=sample_rows,
        decodes=decodes,
    )
