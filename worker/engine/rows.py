"""The running sequences, each with a row in arrays, so that those that only decode need no Python loop per step.

Owns which sequence has which row, which ones decode, and the block tables. Knows no budget, and no order except that of
admission. Invariant: a sequence is in `prompts` or it decodes, until it has its full length or leaves; a decoding
sequence lacks only its last token, and its table holds the blocks of all others.
"""

import numpy as np
from numpy.typing import NDArray

from worker.engine.blocks import NO_TABLE, BlockTables
from worker.engine.sequence import Sequence


class Rows:
    def __init__(self, rows: int, blocks: int, block_size: int) -> None:
        self.tables = BlockTables(rows, blocks)
        self.prompts: dict[Sequence, None] = {}  # and sequences that are computed again after a preemption
        self._block_size = block_size
        self._sequences: list[Sequence | None] = [None] * rows
        self._until = np.zeros(
            rows, dtype=np.int64
        )  # [rows] the length at which it stops decoding; 0: it does not decode

    def start(self, sequence: Sequence, cached: list[int], fresh: list[int]) -> None:
        table = self.tables.take()
        table.extend(cached + fresh)
        table.computed = len(cached) * self._block_size
        sequence.table = table
        self._sequences[table.row] = sequence
        if sequence.decodes:
            self._decode(sequence)
        else:
            self.prompts[sequence] = None

    def stop(self, sequence: Sequence) -> NDArray[np.int32]:
        """Remove a sequence. Returns its blocks, which the caller must still release from the pool."""
        self.prompts.pop(sequence, None)
        self._sequences[sequence.table.row] = None
        self._until[sequence.table.row] = 0
        blocks = self.tables.give_back(sequence.table)
        sequence.table = NO_TABLE
        return blocks

    def launch(self, rows: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count `tokens` more tokens of the sequences in these rows as computed. Returns each one's new total."""
        computed = self.tables.computed[rows] + tokens
        self.tables.computed[rows] = computed
        for sequence in [prompt for prompt in self.prompts if not prompt.gap]:
            del self.prompts[sequence]
            self._decode(sequence)
        return computed

    def decodes(self) -> list[Sequence]:
        return self._in(self.tables.computed + 1 < self._until)

    def growing(self) -> list[Sequence]:
        """The decoding sequences whose last token starts a new block."""
        computed = self.tables.computed
        return self._in((computed + 1 < self._until) & (computed % self._block_size == 0))

    def check_integrity(self, running: dict[Sequence, None]) -> None:
        """Asserts the invariant."""
        assert {sequence for sequence in self._sequences if sequence is not None} == running.keys()
        for sequence in running:
            decodes = bool(self._until[sequence.table.row])
            assert self._sequences[sequence.table.row] is sequence
            assert (sequence in self.prompts) != decodes
            assert not decodes or sequence.num_computed == len(sequence.tokens) - 1

    def _decode(self, sequence: Sequence) -> None:
        self._until[sequence.table.row] = sequence.tokens_max

    def _in(self, chosen: NDArray[np.bool_]) -> list[Sequence]:
        found = [self._sequences[row] for row in np.flatnonzero(chosen).tolist()]
        return [sequence for sequence in found if sequence is not None]
