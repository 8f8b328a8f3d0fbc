"""Decode steps, one token a sequence, at a few batch sizes that were recorded beforehand.

Owns the buffers that recorded steps read, and the choice of the size: a batch runs at the least size that holds it, and
the rows beyond it are padding. Invariant: a padded row has slot -1 and no context, so it writes nothing to the pool and
attends to nothing; no other row can tell whether it is there.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.engine.batch import Batch
from worker.engine.graphs import Graphs, Run
from worker.engine.staging import Staging
from worker.models.decoder import StepTensors

FINE, STRIDE = 16, 16  # sizes are powers of two up to FINE, then STRIDE apart


def decode_sizes(rows_max: int) -> list[int]:
    """At most twice what a batch needs below 16 rows, at most 15 rows more above."""
    sizes = [1, 2, 4, 8, FINE, *range(FINE + STRIDE, rows_max, STRIDE)]
    return [size for size in sizes if size < rows_max] + [rows_max]


class DecodeSteps:
    """`forward` computes a step that lies in StepTensors; `capture` must have been called before `run`."""

    def __init__(
        self, forward: Callable[[StepTensors], Tensor], staging: Staging, *, rows_max: int, blocks_max: int
    ) -> None:
        device = staging.device
        self._forward = forward
        self._staging = staging
        self.sizes = decode_sizes(rows_max)
        self._runs: dict[int, Run] = {}
        # All that changes from step to step. The first three have rows of their own, each on an aligned address.
        self._ids = torch.zeros(rows_max, dtype=torch.int64, device=device)
        self._positions = torch.zeros(rows_max, dtype=torch.int64, device=device)
        self._slots = torch.full((rows_max,), -1, dtype=torch.int64, device=device)
        self._context_lens = torch.zeros(rows_max, dtype=torch.int32, device=device)
        self._tables = torch.zeros((rows_max, blocks_max), dtype=torch.int32, device=device)
        self._query_start = torch.arange(rows_max + 1, dtype=torch.int32, device=device)
        self._rows = torch.arange(rows_max, dtype=torch.int64, device=device)

    def capture(self, graphs: Graphs) -> None:
        """Largest first: the others then find room in the memory that it took."""
        for size in reversed(self.sizes):
            self._runs[size] = graphs.capture(self._step(size))

    def takes(self, batch: Batch) -> bool:
        rows = len(batch.context_lens)
        return rows == len(batch.ids) and rows <= self.sizes[-1]

    def run(self, batch: Batch) -> Tensor:
        """The logits of `batch.sample_rows`, [samples, vocab]. They are overwritten by the next step."""
        size = next(size for size in self.sizes if size >= len(batch.ids))
        self._load(batch, size)
        logits = self._runs[size]()
        if len(batch.sample_rows) == len(batch.ids):  # every row, in order
            return logits[: len(batch.ids)]
        return logits[self._staging.up(batch.sample_rows)]

    def _load(self, batch: Batch, size: int) -> None:
        into = self._staging.into
        into(self._ids, padded(batch.ids, size, 0))
        into(self._positions, padded(batch.positions, size, 0))
        into(self._slots, padded(batch.slots, size, -1))
        into(self._context_lens, padded(batch.context_lens, size, 0))
        into(self._tables, batch.block_tables)  # of padded rows nothing is read

    def _step(self, size: int) -> Run:
        step = StepTensors(
            ids=self._ids[:size],
            positions=self._positions[:size],
            slots=self._slots[:size],
            query_start=self._query_start[: size + 1],
            context_lens=self._context_lens[:size],
            block_tables=self._tables[:size],
            sample_rows=self._rows[:size],
            queries_max=1,
        )
        return lambda: self._forward(step)


def padded(values: NDArray[np.int64] | NDArray[np.int32], size: int, filler: int) -> NDArray[np.int64 | np.int32]:
    whole = np.full(size, filler, values.dtype)
    whole[: len(values)] = values
    return whole
