import numpy as np
import pytest

from worker.engine.blocks import NULL_BLOCK, BlockPool, BlockTables


def ids(*blocks: int):
    return np.array(blocks, dtype=np.int32)


def named(pool: BlockPool, *names: bytes) -> list[int]:
    """Blocks that contain what the names say, held once."""
    blocks = pool.allocate(len(names))
    assert blocks is not None
    for name, block in zip(names, blocks, strict=True):
        pool.cache.publish(name, block)
    return blocks


def test_every_usable_block_is_given_once_and_never_the_null_block():
    pool = BlockPool(5)
    first, rest = pool.allocate(3), pool.allocate(1)
    assert first is not None
    assert rest is not None
    assert sorted(first + rest) == [1, 2, 3, 4]
    assert NULL_BLOCK not in first
    assert pool.free_count == 0


def test_a_shortage_is_an_answer_and_takes_nothing():
    pool = BlockPool(5)
    assert pool.allocate(5) is None
    assert pool.free_count == pool.usable == 4


def test_released_blocks_are_reused_first():
    pool = BlockPool(9)
    taken = pool.allocate(3)
    assert taken is not None
    pool.release(ids(*taken))
    assert set(pool.allocate(3) or []) == set(taken)


@pytest.mark.parametrize("block", [1, 2, NULL_BLOCK], ids=["twice", "never held", "null"])
def test_a_wrong_release_is_a_bug(block):
    pool = BlockPool(9)
    assert pool.allocate(1) == [1]
    pool.release(ids(1))
    with pytest.raises(AssertionError):
        pool.release(ids(block))


def test_a_pool_without_usable_blocks_is_refused():
    with pytest.raises(ValueError, match="1 blocks"):
        BlockPool(1)


def test_named_blocks_that_nobody_holds_are_free_and_still_found():
    pool = BlockPool(5)
    blocks = named(pool, b"a", b"b")
    pool.release(ids(*blocks))
    assert (pool.free_count, pool.cache.idle_count) == (4, 2)
    assert pool.cache.find([b"a", b"b", b"c"]) == blocks
    pool.share(blocks)
    assert (pool.free_count, pool.cache.idle_count) == (2, 0)
    pool.share(blocks)
    pool.release(ids(*blocks))
    assert pool.free_count == 2  # held twice, given up once
    pool.release(ids(*blocks))
    assert pool.free_count == 4
    pool.check_integrity([])


def test_unused_blocks_go_first_then_the_longest_idle_and_of_one_table_its_end():
    pool = BlockPool(7)
    old, young = named(pool, b"a1", b"a2"), named(pool, b"b1", b"b2")
    pool.release(ids(*old))
    pool.release(ids(*young))
    assert set(pool.allocate(2) or []) == {5, 6}
    gone: list[bytes] = []
    for _ in range(4):
        pool.allocate(1)
        gone += [name for name in (b"a1", b"a2", b"b1", b"b2") if not pool.cache.find([name]) and name not in gone]
    assert gone == [b"a2", b"a1", b"b2", b"b1"]
    assert pool.allocate(1) is None


def test_a_hit_makes_a_block_young_again():
    pool = BlockPool(3)
    a, b = named(pool, b"a"), named(pool, b"b")
    pool.release(ids(*a))
    pool.release(ids(*b))
    pool.share(a)
    pool.release(ids(*a))
    assert pool.allocate(1) == b


def test_forgotten_names_are_never_found_whoever_holds_the_blocks():
    pool = BlockPool(5)
    held, idle = named(pool, b"held"), named(pool, b"idle")
    pool.release(ids(*idle))
    pool.forget([b"held", b"idle", b"unknown"])
    assert pool.cache.find([b"held"]) == pool.cache.find([b"idle"]) == []
    assert (pool.free_count, pool.cache.idle_count) == (3, 0)
    pool.release(ids(*held))
    assert (pool.free_count, pool.cache.idle_count) == (4, 0)
    pool.check_integrity([])


def test_of_two_blocks_with_the_same_content_the_first_is_found():
    pool = BlockPool(5)
    first, second = named(pool, b"a"), named(pool, b"a")
    assert pool.cache.find([b"a"]) == first
    pool.release(ids(*second))
    pool.release(ids(*first))
    assert (pool.free_count, pool.cache.idle_count) == (4, 1)


@pytest.mark.parametrize("fault", ["lost", "shared", "free"])
def test_integrity_finds_each_kind_of_damage(fault):
    pool = BlockPool(9)
    tables = BlockTables(2, 8)
    table, other = tables.take(), tables.take()
    table.extend(pool.allocate(2) or [])
    other.extend(pool.allocate(2) or [])
    pool.check_integrity([table, other])
    if fault == "lost":
        tables.give_back(other)
    elif fault == "shared":
        other.extend([int(table.ids[0])])
    else:
        pool.release(table.ids)
    with pytest.raises(AssertionError):
        pool.check_integrity([table, other])


def test_integrity_finds_a_held_block_among_the_idle():
    pool = BlockPool(9)
    table = BlockTables(1, 8).take()
    table.extend(named(pool, b"a"))
    pool.cache.park(int(table.ids[0]))
    with pytest.raises(AssertionError, match="free"):
        pool.check_integrity([table])


def test_a_table_gives_its_blocks_and_its_row_back():
    tables = BlockTables(2, 4)
    table, other = tables.take(), tables.take()
    table.extend([7, 3])
    table.extend([5])
    other.extend([9])
    assert table.ids.tolist() == [7, 3, 5]
    assert tables.matrix[[table.row, other.row]].tolist() == [[7, 3, 5, 0], [9, 0, 0, 0]]
    assert tables.give_back(table).tolist() == [7, 3, 5]
    again = tables.take()
    assert (again.row, again.ids.tolist()) == (table.row, [])
    assert tables.matrix[again.row].tolist() == [0, 0, 0, 0]


def test_the_check_when_idle_finds_what_is_held_and_what_is_lost():
    pool = BlockPool(5)
    pool.check_idle()
    pool.allocate(1)
    with pytest.raises(AssertionError, match="held"):
        pool.check_idle()
    pool.counts[:] = 0
    with pytest.raises(AssertionError, match="lost"):
        pool.check_idle()
