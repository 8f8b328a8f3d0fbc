import numpy as np
import pytest

from tests.unit.engine.builders import make_sequence
from worker.engine.batch import Batch
from worker.engine.blocks import BlockTables
from worker.engine.packing import pack
from worker.engine.schedule import Chunk, Schedule
from worker.engine.sequence import Sequence


class Prepared:
    """Sequences in the midst of running, and the step that they are packed into."""

    def __init__(self) -> None:
        self.tables = BlockTables(8, 8)

    def sequence(self, arrival: int, *, tokens: int, computed: int, blocks: list[int]) -> Sequence:
        sequence = make_sequence(arrival, tokens)
        sequence.tokens = list(range(100 * arrival, 100 * arrival + tokens))
        sequence.table = self.tables.take()
        sequence.table.computed = computed
        sequence.table.extend(blocks)
        return sequence

    def pack(
        self, *chunks: tuple[Sequence, int], decodes: tuple[Sequence, ...] = (), block_size: int = 4
    ) -> tuple[Batch, list[Sequence]]:
        schedule = Schedule(list(decodes), [Chunk(*chunk) for chunk in chunks], [], 0)
        return pack(schedule, self.tables, block_size)


@pytest.fixture
def step() -> Prepared:
    return Prepared()


def test_a_decode_a_chunk_and_a_whole_prompt_lie_side_by_side_without_padding(step):
    decode = step.sequence(1, tokens=6, computed=5, blocks=[9, 4])
    chunk = step.sequence(2, tokens=11, computed=3, blocks=[2, 3, 8])
    whole = step.sequence(3, tokens=2, computed=0, blocks=[7])
    batch, sampled = step.pack((chunk, 4), (whole, 2), decodes=(decode,))

    assert batch.ids.tolist() == [105, 203, 204, 205, 206, 300, 301]
    assert batch.positions.tolist() == [5, 3, 4, 5, 6, 0, 1]
    assert batch.slots.tolist() == [4 * 4 + 1, 2 * 4 + 3, 3 * 4, 3 * 4 + 1, 3 * 4 + 2, 7 * 4, 7 * 4 + 1]
    assert batch.query_start.tolist() == [0, 1, 5, 7]
    assert batch.context_lens.tolist() == [6, 7, 2]
    # The chunk's third block is held, but nothing of it is read yet.
    assert batch.block_tables.tolist() == [[9, 4], [2, 3], [7, 0]]
    assert batch.sample_rows.tolist() == [0, 6]
    assert [params.position for params in batch.samples] == [6, 2]
    assert sampled == [decode, whole]


def test_the_types_are_what_runners_expect(step):
    batch, _ = step.pack((step.sequence(1, tokens=2, computed=0, blocks=[1]), 2))
    assert {name: getattr(batch, name).dtype for name in ("ids", "positions", "slots", "sample_rows")} == dict.fromkeys(
        ("ids", "positions", "slots", "sample_rows"), np.int64
    )
    assert {getattr(batch, name).dtype for name in ("query_start", "context_lens", "block_tables")} == {
        np.dtype(np.int32)
    }


def test_slots_beyond_two_billion_do_not_wrap(step):
    sequence = step.sequence(1, tokens=1, computed=0, blocks=[200_000_000])
    batch, _ = step.pack((sequence, 1), block_size=16)
    assert batch.slots.tolist() == [3_200_000_000]


def test_a_chunk_that_does_not_reach_the_end_asks_for_no_sample(step):
    batch, sampled = step.pack((step.sequence(1, tokens=9, computed=0, blocks=[1, 2, 3]), 8))
    assert (batch.sample_rows.tolist(), batch.samples, sampled) == ([], [], [])
