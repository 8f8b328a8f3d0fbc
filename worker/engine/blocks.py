"""The KV pool's bookkeeping: which block is free, and which blocks a sequence holds, in order.

Knows numbers only, not what the blocks contain. Invariant: every usable block is either free or in exactly one table.
Block 0 is the null block: it pads block tables and is never handed out.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

NULL_BLOCK = 0


class BlockPool:
    """Blocks 1 to `total - 1`. Running short is an answer (None); misuse is a bug (AssertionError)."""

    def __init__(self, total: int) -> None:
        if total < 2:
            raise ValueError(f"a pool of {total} blocks has none to give beside the null block")
        self.usable = total - 1
        # Last in, first out: a warm block is reused first, and a table that outlived its blocks is found out at once.
        self._free = list(range(total - 1, NULL_BLOCK, -1))
        self._held = bytearray(total)

    @property
    def free_count(self) -> int:
        return len(self._free)

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks, or None if so many are not free."""
        assert count > 0
        if count > len(self._free):
            return None
        taken = self._free[-count:]
        del self._free[-count:]
        for block in taken:
            assert not self._held[block]
            self._held[block] = 1
        return taken

    def release(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            assert block != NULL_BLOCK
            assert self._held[block], f"block {block} is free already"
            self._held[block] = 0
            self._free.append(block)

    def check_integrity(self, tables: Iterable["BlockTable"]) -> None:
        """Asserts the invariant against all tables that exist."""
        held = [block for table in tables for block in table.ids.tolist()]
        assert len(set(held)) == len(held), "a block is in two tables"
        assert set(held).isdisjoint(self._free), "a block in a table is free"
        assert NULL_BLOCK not in held
        assert len(held) + len(self._free) == self.usable, "a block is lost"


class BlockTable:
    """The blocks of one sequence: token `i` lies in block `ids[i // block_size]`. An array, so that a step copies it
    without touching single numbers.
    """

    __slots__ = ("_array", "count")

    def __init__(self, capacity: int) -> None:
        self._array: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.count = 0

    @property
    def ids(self) -> NDArray[np.int32]:
        return self._array[: self.count]

    def first(self, count: int) -> NDArray[np.int32]:
        """The first `count` of the blocks."""
        assert count <= self.count
        return self._array[:count]

    def extend(self, blocks: list[int]) -> None:
        self._array[self.count : self.count + len(blocks)] = blocks
        self.count += len(blocks)

    def clear(self) -> list[int]:
        """Empty the table and give up its blocks."""
        blocks: list[int] = self.ids.tolist()
        self.count = 0
        return blocks
