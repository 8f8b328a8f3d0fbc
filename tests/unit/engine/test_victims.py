import pytest

from tests.unit.engine.builders import BLOCK_SIZE, make_sequence
from worker.engine import victims
from worker.engine.blocks import BlockPool, BlockTables
from worker.engine.sequence import Sequence
from worker.engine.victims import SPENT, Want


class Running:
    """Sequences that hold blocks of a pool of 20."""

    def __init__(self) -> None:
        self.pool = BlockPool(21)
        self.tables = BlockTables(8, 20)
        self.sequences: list[Sequence] = []

    def add(
        self, blocks: int, *, tier: int = 1, computed: int | None = None, shared: Sequence | None = None
    ) -> Sequence:
        """One that holds so many blocks of its own, after the first two of `shared`."""
        sequence = make_sequence(len(self.sequences), BLOCK_SIZE * blocks, tier=tier)
        sequence.rank = tier
        sequence.table = self.tables.take()
        if shared is not None:
            common = shared.table.ids[:2].tolist()
            self.pool.share(common)
            sequence.table.extend(common)
        sequence.table.extend(self.pool.allocate(blocks) or [])
        sequence.table.computed = BLOCK_SIZE * sequence.table.count if computed is None else computed
        self.sequences.append(sequence)
        return sequence

    def worst(self) -> Sequence:
        return victims.worst(self.sequences, self.pool, BLOCK_SIZE)

    def for_urgent(self, fresh: int, *, cached: tuple[int, ...] = (), spare: int = 0, others: int = 0) -> list[int]:
        """Arrivals of those that give way."""
        chosen = victims.for_urgent(
            Want(list(cached), fresh), self.sequences, self.pool, others=others, spare=spare, block_size=BLOCK_SIZE
        )
        return sorted(sequence.arrival for sequence in chosen)


@pytest.fixture
def running() -> Running:
    return Running()


def test_the_least_urgent_tier_comes_first(running):
    running.add(2, tier=0)
    dear = running.add(6, tier=2)
    running.add(1, tier=1)
    assert running.worst() is dear


def test_then_the_least_work_lost_then_the_last_to_arrive(running):
    running.add(4)
    running.add(2, computed=5)
    last = running.add(3, computed=5)
    running.add(3, computed=6)
    assert running.worst() is last


def test_what_others_keep_alive_is_no_loss(running):
    leader = running.add(4)
    running.add(3)
    follower = running.add(2, shared=leader)  # computes 4 blocks, loses 2
    assert running.worst() is follower


def test_one_that_was_a_victim_often_comes_last_and_the_first_to_arrive_is_the_very_last(running):
    often = [running.add(1), running.add(2), running.add(1)]
    for sequence in often:
        sequence.preemptions = SPENT
    dear = running.add(9)
    assert running.worst() is dear
    running.sequences.remove(dear)
    assert running.worst() is often[2]
    running.sequences.remove(often[2])
    assert running.worst() is often[1]


def test_no_more_give_way_than_needed(running):
    for blocks in (2, 3, 8, 7):
        running.add(blocks)
    assert running.for_urgent(2) == [0]
    assert running.for_urgent(5) == [0, 1]
    # By cost 0, 1 and 3 would give way; with 3, which is needed, 1 is not.
    assert running.for_urgent(8) == [0, 3]


def test_nobody_gives_way_to_no_avail(running):
    running.add(4)
    running.add(4)
    running.pool.allocate(12)
    assert running.for_urgent(8) == [0, 1]
    assert running.for_urgent(9) == []
    assert running.for_urgent(8, spare=1, others=1) == []
    assert running.for_urgent(8, spare=1) == [0, 1]  # nobody is left for whom to spare it


def test_at_least_one_gives_way_where_only_a_place_is_missing(running):
    running.add(4)
    running.add(2)
    assert running.for_urgent(3) == [1]


def test_blocks_that_victims_share_come_free_with_the_last_of_them(running):
    leader = running.add(4)
    running.add(2, shared=leader)
    running.pool.allocate(14)
    assert running.for_urgent(2) == [1]
    assert running.for_urgent(6) == [0, 1]
    assert running.for_urgent(7) == []


def test_blocks_that_the_urgent_one_finds_are_not_room_for_its_others(running):
    holder = running.add(4)
    running.pool.allocate(16)
    cached = tuple(holder.table.ids[:2].tolist())
    assert running.for_urgent(2, cached=cached) == [0]
    assert running.for_urgent(3, cached=cached) == []
