"""Batches prepared on the device: against the plain reference, which prepares one sequence after the other."""

from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import device_batch, reference_batch
from kernels.device_batch import COMPUTED, BatchRows, PreparedBatch, SequenceRows

BLOCK_SIZE = 4
BLOCKS_MAX = 300  # wider than what one stride takes
CPU = torch.device("cpu")


def ints(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def ids(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def some_rows() -> SequenceRows:
    rows = SequenceRows.of(6, BLOCKS_MAX, CPU)
    rows.block_tables.copy_(torch.randperm(6 * BLOCKS_MAX).view(6, BLOCKS_MAX) + 1)
    # Nothing, one less than a block, a block, one more, many; row 5 is nobody's.
    rows.computed.copy_(ints([0, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 1000, 77]))
    rows.last_ids.copy_(ids([900, 901, 902, 903, 904, 905]))
    return rows


def copied(rows: SequenceRows) -> SequenceRows:
    return SequenceRows(*(each.clone() for each in astuple(rows)))


def spoiled(tokens: int, sequences: int, blocks_max: int = BLOCKS_MAX) -> PreparedBatch:
    """What is not written shows."""
    out = PreparedBatch.of(tokens, sequences, blocks_max, CPU)
    for each in astuple(out):
        each.fill_(12345)
    return out


def assert_equal(got, expected) -> None:
    for one, other in zip(astuple(got), astuple(expected), strict=True):
        assert torch.equal(one, other)


def assert_prepares(batch: BatchRows, blocks_max: int = BLOCKS_MAX) -> PreparedBatch:
    rows = some_rows()
    sizes = (len(batch.given_ids), len(batch.rows), blocks_max)
    got, expected = spoiled(*sizes), spoiled(*sizes)
    device_batch.prepare_batch(rows, batch, got, block_size=BLOCK_SIZE)
    reference_batch.prepare_batch(rows, batch, expected, block_size=BLOCK_SIZE)
    assert_equal(got, expected)
    return got


def test_decodes_with_padding() -> None:
    batch = BatchRows(ints([3, 0, -1, 4, 1, 2, -1, -1]), ints(range(9)), ids([-1] * 8))
    got = assert_prepares(batch)
    assert got.ids.tolist() == [903, 900, 0, 904, 901, 902, 0, 0]
    assert got.slots[[2, 6, 7]].tolist() == [-1, -1, -1]
    assert got.context_lens[[2, 6, 7]].tolist() == [0, 0, 0]
    assert got.block_tables[[2, 6, 7]].sum() == 0


def test_decodes_beside_chunks_of_prompts() -> None:
    """Chunks of one token and of more than one stride; a sequence without tokens; a padded tail."""
    lengths = [1, 1, 1, 300, 0, 3]
    start = np.cumsum([0, *lengths])
    given = torch.full((int(start[-1]) + 5,), -1)
    given[2 : start[-1]] = torch.arange(2, int(start[-1]))
    assert_prepares(BatchRows(ints([2, 1, 3, 0, -1, 4]), ints(start.tolist()), given))


def test_tables_narrower_than_the_rows() -> None:
    assert_prepares(BatchRows(ints([1, -1]), ints([0, 2, 3]), ids([5, 6, -1])), blocks_max=2)


def test_nothing_to_prepare() -> None:
    empty = BatchRows(ints([]), ints([0]), ids([]))
    device_batch.prepare_batch(some_rows(), empty, spoiled(0, 0), block_size=BLOCK_SIZE)
    device_batch.commit_batch(some_rows(), empty, ids([]), ints([]))
    device_batch.patch_rows(some_rows(), ints([]).view(0, 3))
    assert_prepares(BatchRows(ints([-1]), ints([0, 1]), ids([-1])))


def test_slots_beyond_two_to_the_31() -> None:
    rows, out = SequenceRows.of(1, 1, CPU), spoiled(1, 1, 1)
    device_batch.patch_rows(rows, ints([[0, 0, 2**31 - 1], [0, COMPUTED, 3]]))
    device_batch.prepare_batch(rows, BatchRows(ints([0]), ints([0, 1]), ids([-1])), out, block_size=BLOCK_SIZE)
    assert out.slots.tolist() == [(2**31 - 1) * BLOCK_SIZE + 3]


@pytest.mark.parametrize("count", [1, 255, 256, 700])
def test_patches(count: int) -> None:
    places = torch.randperm(6 * (BLOCKS_MAX + 1))[:count]
    patches = torch.stack((places // (BLOCKS_MAX + 1), places % (BLOCKS_MAX + 1) - 1, torch.arange(count)), 1).int()
    patches[::7, 0] = -1
    got = some_rows()
    expected = copied(got)
    device_batch.patch_rows(got, patches)
    reference_batch.patch_rows(expected, patches)
    assert_equal(got, expected)


def test_commits() -> None:
    got = some_rows()
    expected = copied(got)
    batch = BatchRows(ints([3, -1, 0, 4]), ints([0, 1, 2, 7, 9]), ids([-1] * 9))
    for module, rows in ((device_batch, got), (reference_batch, expected)):
        module.commit_batch(rows, batch, ids([50, 51, 52]), ints([1, 0, -1, 2]))
    assert_equal(got, expected)
    assert got.last_ids.tolist() == [900, 901, 902, 51, 52, 905]
    assert got.computed.tolist() == [5, 3, 4, 6, 1002, 77]


def test_two_steps_need_nothing_of_the_host_but_a_block() -> None:
    rows = SequenceRows.of(2, 4, CPU)
    device_batch.patch_rows(rows, ints([[1, 0, 8], [1, COMPUTED, 3]]))
    rows.last_ids[1] = 40
    batch, out = BatchRows(ints([1]), ints([0, 1]), ids([-1])), spoiled(1, 1, 4)
    device_batch.prepare_batch(rows, batch, out, block_size=BLOCK_SIZE)
    assert (out.ids.item(), out.positions.item(), out.slots.item(), out.context_lens.item()) == (40, 3, 35, 4)
    device_batch.commit_batch(rows, batch, ids([41]), ints([0]))
    device_batch.patch_rows(rows, ints([[1, 1, 5]]))
    device_batch.prepare_batch(rows, batch, out, block_size=BLOCK_SIZE)
    assert (out.ids.item(), out.positions.item(), out.slots.item(), out.context_lens.item()) == (41, 4, 20, 5)
    assert out.block_tables.tolist() == [[8, 5, 0, 0]]
