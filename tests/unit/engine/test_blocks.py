import pytest

from worker.engine.blocks import NULL_BLOCK, BlockPool, BlockTable


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
    pool.release(taken)
    assert set(pool.allocate(3) or []) == set(taken)


@pytest.mark.parametrize("blocks", [[1, 1], [2], [NULL_BLOCK]], ids=["twice", "never held", "null"])
def test_a_wrong_release_is_a_bug(blocks):
    pool = BlockPool(9)
    assert pool.allocate(1) == [1]
    with pytest.raises(AssertionError):
        pool.release(blocks)


def test_a_pool_without_usable_blocks_is_refused():
    with pytest.raises(ValueError, match="1 blocks"):
        BlockPool(1)


@pytest.mark.parametrize("fault", ["lost", "shared", "free"])
def test_integrity_finds_each_kind_of_damage(fault):
    pool = BlockPool(9)
    table, other = BlockTable(4), BlockTable(4)
    table.extend(pool.allocate(2) or [])
    other.extend(pool.allocate(2) or [])
    pool.check_integrity([table, other])
    if fault == "lost":
        other.clear()
    elif fault == "shared":
        other.extend([int(table.ids[0])])
    else:
        pool.release(table.ids.tolist())
    with pytest.raises(AssertionError):
        pool.check_integrity([table, other])


def test_a_table_gives_its_blocks_up_once():
    table = BlockTable(4)
    table.extend([7, 3])
    table.extend([5])
    assert table.ids.tolist() == [7, 3, 5]
    assert table.clear() == [7, 3, 5]
    assert table.clear() == []
