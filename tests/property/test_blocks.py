"""The block pool with its cache against the simplest model of both: who holds what, and an ordered list of idle
blocks.
"""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from worker.engine.blocks import NULL_BLOCK, BlockPool, BlockTables

NAMES = [bytes([letter]) for letter in b"abcdefghij"]


class BlocksMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(2, 20), tables=st.integers(1, 4))
    def create(self, total: int, tables: int) -> None:
        self.pool = BlockPool(total)
        self.usable = set(range(1, total))
        self.rows = BlockTables(tables, 64)
        self.tables = [self.rows.take() for _ in range(tables)]
        self.model: list[list[int]] = [[] for _ in range(tables)]
        self.named: dict[bytes, int] = {}
        self.idle: list[bytes] = []  # the longest idle first

    def held(self) -> set[int]:
        return {block for held in self.model for block in held}

    @rule(table=st.integers(0, 3), count=st.integers(1, 8))
    def allocate(self, table: int, count: int) -> None:
        table %= len(self.tables)
        free = self.usable - self.held()
        blocks = self.pool.allocate(count)
        if count > len(free):
            assert blocks is None
            return
        assert blocks is not None
        assert len(set(blocks)) == count
        assert set(blocks) <= free
        for _ in range(count - (len(free) - len(self.idle))):
            evicted = self.named.pop(self.idle.pop(0))
            assert evicted in blocks
        assert not set(blocks) & {self.named[name] for name in self.idle}
        self.tables[table].extend(blocks)
        self.model[table] += blocks

    @rule(table=st.integers(0, 3), names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    def publish(self, table: int, names: list[bytes]) -> None:
        table %= len(self.tables)
        known = set(self.named.values())
        for name, block in zip(names, [block for block in self.model[table] if block not in known], strict=False):
            self.pool.cache.publish(name, block)
            self.named.setdefault(name, block)

    @rule(table=st.integers(0, 3), names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    def hit(self, table: int, names: list[bytes]) -> None:
        table %= len(self.tables)
        expected: list[int] = []
        for name in names:
            if name not in self.named:
                break
            expected.append(self.named[name])
        found = self.pool.cache.find(names)
        assert found == expected
        fresh = [block for block in found if block not in self.model[table]]
        self.pool.share(fresh)
        self.idle = [name for name in self.idle if self.named[name] not in fresh]
        self.tables[table].extend(fresh)
        self.model[table] += fresh

    @rule(table=st.integers(0, 3))
    def release(self, table: int) -> None:
        table %= len(self.tables)
        blocks, self.model[table] = self.model[table], []
        self.pool.release(self.rows.give_back(self.tables[table]))
        self.tables[table] = self.rows.take()
        names = {block: name for name, block in self.named.items()}
        self.idle += [names[block] for block in blocks[::-1] if block in names and block not in self.held()]

    @precondition(lambda self: self.named)
    @rule(data=st.data())
    def forget(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.named)))
        self.pool.forget([name])
        del self.named[name]
        if name in self.idle:
            self.idle.remove(name)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert [table.ids.tolist() for table in self.tables] == self.model
        held = self.held()
        assert self.pool.free_count == len(self.usable) - len(held)
        assert self.pool.cache.idle_count == len(self.idle)
        assert self.pool.cache.idle() == [self.named[name] for name in self.idle]
        counts = np.bincount([block for held in self.model for block in held], minlength=len(self.usable) + 1)
        assert (counts == self.pool.counts).all()
        assert NULL_BLOCK not in held
        self.pool.check_integrity(self.tables)


TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40)
