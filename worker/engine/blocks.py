"""The bookkeeping of the KV pool: how many sequences hold each block, and which blocks a sequence holds, in order.

Knows block numbers only, not contents; the prefix cache knows the contents of some blocks. Invariant: every usable
block is in exactly one of three states: unused; cached, but held by no sequence; or held by as many tables as its count
says. Blocks in the first two states are free. Block 0 is the null block: it pads block tables and is never allocated.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from worker.engine.prefix import PrefixCache

NULL_BLOCK = 0
_NO_BLOCKS: NDArray[np.int32] = np.zeros(0, dtype=np.int32)


class BlockPool:
    """Blocks 1 to `total - 1`. A lack of blocks is an answer (None); misuse is a bug (AssertionError)."""

    def __init__(self, total: int) -> None:
        if total < 2:
            raise ValueError(f"a pool of {total} blocks has none to give beside the null block")
        self.usable = total - 1
        self.cache = PrefixCache()
        self.counts: NDArray[np.int32] = np.zeros(total, dtype=np.int32)  # [blocks] how many tables hold each block
        # Last in, first out: a block that is still in a cache is reused first, and a stale table is detected at once.
        self._unused = list(range(total - 1, NULL_BLOCK, -1))

    @property
    def free_count(self) -> int:
        """Blocks that can be allocated: unused ones and, when these run out, cached ones."""
        return len(self._unused) + self.cache.idle_count

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None if so many are not free."""
        assert count >= 0
        if count > self.free_count:
            return None
        evicted = [self.cache.evict() for _ in range(count - len(self._unused))]
        at = max(len(self._unused) - count, 0)
        taken = self._unused[at:] + evicted
        del self._unused[at:]
        for block in taken:  # usually one block; numpy's indexing costs as much as forty iterations of this loop
            assert self.counts[block] == 0
            self.counts[block] = 1
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """Add a holder to each of these cached blocks. Call it before `allocate`, which could evict them."""
        for block in blocks:
            if self.counts[block] == 0:
                self.cache.unpark(block)
            self.counts[block] += 1

    def release(self, blocks: NDArray[np.int32]) -> None:
        """Release one table's blocks, in its order. Its last block becomes the first to be evicted, since it is useless
        without the blocks before it.
        """
        assert (blocks != NULL_BLOCK).all()
        assert (self.counts[blocks] > 0).all(), "a block is free already"
        self.counts[blocks] -= 1  # a table has no block twice
        for block in blocks[self.counts[blocks] == 0][::-1].tolist():
            if not self.cache.park(block):
                self._unused.append(block)

    def forget(self, names: Iterable[bytes]) -> None:
        """Remove these names from the prefix cache, whoever holds the blocks."""
        for name in names:
            block = self.cache.withdraw(name)
            if block is not None:
                self._unused.append(block)

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks no sequence holds."""
        return int((self.counts[list(blocks)] == 0).sum()) if blocks else 0

    def check_idle(self) -> None:
        """Assert that no block is held and none is lost. Does not inspect the cache."""
        assert not self.counts.any(), "a block is held"
        assert self.free_count == self.usable, "a block is lost"

    def check_integrity(self, tables: Iterable["BlockTable"]) -> None:
        """Assert the invariant against all tables that exist."""
        held = np.concatenate([_NO_BLOCKS, *(table.ids for table in tables)])
        counts = np.bincount(held, minlength=self.usable + 1)
        assert (counts == self.counts).all(), "a count differs from the tables"
        assert counts[NULL_BLOCK] == 0
        self.cache.check_integrity()
        idle, unused = set(self.cache.idle()), set(self._unused)
        assert not counts[[*idle, *unused]].any(), "a block in a table is free"
        assert idle.isdisjoint(unused), "a block is free twice"
        assert len(unused) == len(self._unused), "a block is free twice"
        assert len(idle) + len(unused) + int((counts > 0).sum()) == self.usable, "a block is lost"


class BlockTable:
    """The blocks of one running sequence: token `i` lies in block `ids[i // block_size]`."""

    __slots__ = ("_array", "_computed", "count", "row")

    def __init__(self, row: int, array: NDArray[np.int32], computed: NDArray[np.int64]) -> None:
        self.row = row
        self._array = array
        self._computed = computed
        self.count = 0

    @property
    def computed(self) -> int:
        """Tokens whose K and V are in the blocks."""
        return int(self._computed[self.row])

    @computed.setter
    def computed(self, tokens: int) -> None:
        assert self.row >= 0
        self._computed[self.row] = tokens

    @property
    def ids(self) -> NDArray[np.int32]:
        return self._array[: self.count]

    def extend(self, blocks: Sequence[int]) -> None:
        count = self.count + len(blocks)
        self._array[self.count : count] = blocks
        self.count = count


class BlockTables:
    """All block tables are rows of one matrix, so that a step copies the tables of its sequences at once. A row holds
    the null block beyond its table's end.
    """

    def __init__(self, rows: int, width: int) -> None:
        self.matrix: NDArray[np.int32] = np.zeros((rows, width), dtype=np.int32)  # [rows, blocks]
        self.computed: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)  # [rows] as in `BlockTable`
        self._unused = list(range(rows - 1, -1, -1))

    def take(self) -> BlockTable:
        """An empty table. At most `rows` can be taken at one time."""
        row = self._unused.pop()
        return BlockTable(row, self.matrix[row], self.computed)

    def give_back(self, table: BlockTable) -> NDArray[np.int32]:
        """Return a table. The result is its blocks, which the caller must still release from the pool."""
        blocks = table.ids.copy()
        self.matrix[table.row, : table.count] = NULL_BLOCK
        table.count = table.computed = 0
        self._unused.append(table.row)
        return blocks


NO_TABLE = BlockTable(-1, _NO_BLOCKS, np.zeros(1, dtype=np.int64))  # the table of every sequence that does not run
