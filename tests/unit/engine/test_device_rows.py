"""What the host tells a device about its sequences: differences alone, and always enough of them."""

from dataclasses import astuple

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels import reference_batch
from kernels.device_batch import COMPUTED, BatchRows, PreparedBatch, SequenceRows
from worker.engine.batch import Batch
from worker.engine.device_rows import DeviceRows
from worker.engine.staging import Staging

BLOCK_SIZE, ROWS, BLOCKS_MAX = 4, 3, 5
CPU = torch.device("cpu")


class Noted:
    """The reference, which notes what it is told of the rows."""

    prepare_batch = staticmethod(reference_batch.prepare_batch)
    commit_batch = staticmethod(reference_batch.commit_batch)

    def __init__(self) -> None:
        self.patches: list[list[int]] = []

    def patch_rows(self, rows: SequenceRows, patches: Tensor) -> None:
        self.patches += patches.tolist()
        reference_batch.patch_rows(rows, patches)


class Device:
    def __init__(self) -> None:
        self.noted = Noted()
        self.rows = DeviceRows(Staging(CPU), self.noted, rows_max=ROWS, blocks_max=BLOCKS_MAX, block_size=BLOCK_SIZE)

    def step(self, parts: list[tuple[int, list[int], int, list[int]]], drawn: list[int] | None) -> PreparedBatch:
        """parts: (row, ids, computed before, blocks). Every one is sampled, or none."""
        self.noted.patches.clear()
        lengths = [len(ids) for _, ids, _, _ in parts]
        start = np.cumsum([0, *lengths]).astype(np.int32)
        tables = np.zeros((len(parts), max(len(blocks) for *_, blocks in parts)), np.int32)
        for index, (*_, blocks) in enumerate(parts):
            tables[index, : len(blocks)] = blocks
        batch = Batch(
            ids=np.concatenate([ids for _, ids, _, _ in parts]),
            positions=np.zeros(0, np.int64),  # the device's own affair
            slots=np.zeros(0, np.int64),
            query_start=start,
            context_lens=np.array([computed + len(ids) for _, ids, computed, _ in parts], np.int32),
            block_tables=tables,
            rows=np.array([row for row, *_ in parts], np.int32),
            sample_rows=np.array([] if drawn is None else start[1:] - 1, np.int64),
            samples=[],
        )
        self.rows.send(batch)
        given = torch.from_numpy(np.maximum(batch.ids, -1))
        told = BatchRows(torch.from_numpy(batch.rows), torch.from_numpy(start), given)
        out = PreparedBatch.of(len(batch.ids), len(parts), BLOCKS_MAX, CPU)
        self.rows.prepare(told, out)
        self.rows.commit(batch, told, None if drawn is None else torch.tensor(drawn))
        return out


@pytest.fixture
def device() -> Device:
    return Device()


def test_a_decode_that_follows_another_is_told_nothing_but_a_new_block(device):
    device.step([(2, [11, 12, 13], 0, [7])], drawn=[40])
    out = device.step([(2, [~0], 3, [7])], drawn=[41])
    assert device.noted.patches == []
    assert (out.ids.tolist(), out.positions.tolist(), out.slots.tolist()) == ([40], [3], [7 * BLOCK_SIZE + 3])
    out = device.step([(2, [~0], 4, [7, 9])], drawn=[42])
    assert device.noted.patches == [[2, 1, 9]]
    assert (out.ids.tolist(), out.positions.tolist(), out.slots.tolist()) == ([41], [4], [9 * BLOCK_SIZE])
    assert out.block_tables.tolist() == [[7, 9, 0, 0, 0]]


def test_a_row_that_another_sequence_gets_is_told_anew(device):
    device.step([(0, [11, 12, 13, 14, 15], 0, [7, 8])], drawn=[40])
    out = device.step([(0, [21, 22], 4, [3, 4])], drawn=[41])
    assert sorted(device.noted.patches) == [[0, COMPUTED, 4], [0, 0, 3], [0, 1, 4]]
    assert (out.ids.tolist(), out.slots.tolist()) == ([21, 22], [16, 17])
    assert out.context_lens.tolist() == [6]


def test_chunks_and_decodes_side_by_side_keep_their_own_tokens(device):
    device.step([(1, [11], 0, [5]), (0, [21, 22], 0, [6])], drawn=[40, 50])
    device.step([(2, [31, 32], 0, [7])], drawn=None)
    out = device.step([(0, [51], 2, [6]), (2, [33], 2, [7]), (1, [41], 1, [5])], drawn=[60, 70, 80])
    assert device.noted.patches == []
    assert out.ids.tolist() == [51, 33, 41], "what the host knows it says"
    out = device.step([(1, [~2], 2, [5]), (0, [~0], 3, [6])], drawn=[1, 2])
    assert out.ids.tolist() == [80, 60]


def test_another_sequences_token_is_never_taken(device):
    device.step([(0, [11], 0, [5]), (1, [21], 0, [6])], drawn=[40, 50])
    with pytest.raises(AssertionError, match="another sequence's token"):
        device.step([(0, [~1], 1, [5])], drawn=[1])


def test_what_the_host_knows_is_what_the_device_has(device):
    """Random steps over rows that sequences leave and others get."""
    chance = np.random.default_rng(5)
    for _ in range(60):
        parts = []
        for row in chance.permutation(ROWS)[: chance.integers(1, ROWS + 1)].tolist():
            length, computed = int(chance.integers(1, 6)), int(device.rows._computed[row])
            if chance.random() < 0.4 or computed + length > BLOCKS_MAX * BLOCK_SIZE:
                computed = 0
            blocks = chance.integers(1, 99, -(-(computed + length) // BLOCK_SIZE)).tolist()
            parts.append((row, [9] * length, computed, blocks))
        out = device.step(parts, drawn=[1] * len(parts))
        assert out.context_lens.tolist() == [computed + len(ids) for _, ids, computed, _ in parts]
        for index, (*_, blocks) in enumerate(parts):
            assert out.block_tables[index, : len(blocks)].tolist() == blocks
        known = (device.rows._computed, device.rows._tables)
        there = astuple(device.rows._rows)
        assert torch.equal(torch.from_numpy(known[0]), there[0])
        assert torch.equal(torch.from_numpy(known[1]), there[2])
