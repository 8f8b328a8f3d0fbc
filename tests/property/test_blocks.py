"""The block pool against the plainest model of it: a set of free blocks and one list per table."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from worker.engine.blocks import NULL_BLOCK, BlockPool, BlockTable


class BlocksMachine(RuleBasedStateMachine):
    @initialize(total=st.integers(2, 20), tables=st.integers(1, 4))
    def create(self, total: int, tables: int) -> None:
        self.pool = BlockPool(total)
        self.usable = set(range(1, total))
        self.tables = [BlockTable(total) for _ in range(tables)]
        self.model: list[list[int]] = [[] for _ in range(tables)]

    @rule(table=st.integers(0, 3), count=st.integers(1, 8))
    def allocate(self, table: int, count: int) -> None:
        table %= len(self.tables)
        free = self.usable - {block for held in self.model for block in held}
        blocks = self.pool.allocate(count)
        if count > len(free):
            assert blocks is None
            return
        assert blocks is not None
        assert len(set(blocks)) == count
        assert set(blocks) <= free
        self.tables[table].extend(blocks)
        self.model[table] += blocks

    @rule(table=st.integers(0, 3))
    def release(self, table: int) -> None:
        table %= len(self.tables)
        self.pool.release(self.tables[table].clear())
        self.model[table] = []

    @invariant()
    def nothing_is_lost_or_shared(self) -> None:
        assert [table.ids.tolist() for table in self.tables] == self.model
        assert self.pool.free_count == len(self.usable) - sum(map(len, self.model))
        assert NULL_BLOCK not in {block for held in self.model for block in held}
        self.pool.check_integrity(self.tables)


TestBlocks = BlocksMachine.TestCase
TestBlocks.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
