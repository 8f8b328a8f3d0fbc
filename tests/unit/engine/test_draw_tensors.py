"""What the host tells a device about draws: all of it once, and what has changed since."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from torch import Tensor

from worker.engine.batch import SampleParams
from worker.engine.draw_tensors import DrawTensors
from worker.engine.staging import Staging


class Counted(Staging):
    """Each upload by its number of rows; one that fails when told to."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.uploads: list[int] = []
        self.fails = False

    def up(self, array) -> Tensor:
        if self.fails:
            raise RuntimeError("boom")
        self.uploads.append(array.shape[-1])
        return super().up(array)


@pytest.fixture
def staging() -> Counted:
    return Counted()


def row(position: int, seed: int = 1, *, temperature: float = 0.7, top_k: int = 0, choice: int = 0) -> SampleParams:
    return SampleParams(position, temperature, 0.9, seed, choice, top_k=top_k, min_p=0.1)


def assert_told(tensors: DrawTensors, rows: list[SampleParams]) -> None:
    got = tensors.of(rows)
    for field in fields(got):
        values = [getattr(each, field.name) for each in rows]
        signed = [value - 2**64 if value >= 2**63 else value for value in values]
        told = getattr(got, field.name)
        assert told.is_contiguous()
        torch.testing.assert_close(told, torch.tensor(signed).to(told.dtype), rtol=0, atol=0)


def test_rows_that_go_on_by_a_token_are_told_nothing(staging) -> None:
    tensors = DrawTensors(staging)
    assert_told(tensors, [row(5), row(9, 2**64 - 1, top_k=3)])
    assert staging.uploads == [2, 2, 2]
    for step in range(1, 4):
        assert_told(tensors, [row(5 + step), row(9 + step, 2**64 - 1, top_k=3)])
    assert staging.uploads == [2, 2, 2]


@pytest.mark.parametrize(
    "change", [{"seed": 2}, {"temperature": 0.0}, {"top_k": 7}, {"choice": 1}], ids=lambda change: next(iter(change))
)
def test_a_row_that_changed_is_told(staging, change) -> None:
    tensors = DrawTensors(staging)
    assert_told(tensors, [row(5), row(5)])
    assert_told(tensors, [row(6), row(6, **change)])


def test_rows_that_come_go_or_change_places_are_told(staging) -> None:
    tensors = DrawTensors(staging)
    assert_told(tensors, [row(5, 1), row(5, 2)])
    assert_told(tensors, [row(6, 2), row(6, 1)])
    assert_told(tensors, [row(7, 2)])
    assert_told(tensors, [row(8, 2), row(3, 4)])


def test_of_the_same_rows_elsewhere_only_the_positions_are_told(staging) -> None:
    tensors = DrawTensors(staging)
    assert_told(tensors, [row(5), row(9)])
    staging.uploads.clear()
    assert_told(tensors, [row(6), row(9)])
    assert_told(tensors, [row(6), row(9)])
    assert_told(tensors, [row(7), row(10)])
    assert staging.uploads == [2]


def test_after_one_that_failed_all_is_told(staging) -> None:
    tensors = DrawTensors(staging)
    assert_told(tensors, [row(5)])
    staging.fails = True
    with pytest.raises(RuntimeError):
        tensors.of([row(8)])
    staging.fails = False
    assert_told(tensors, [row(6)])
    assert staging.uploads == [1] * 6


def test_what_is_told_is_what_the_rows_say(staging) -> None:
    """Random rows that go on, stand still, jump, come and leave."""
    chance, tensors = np.random.default_rng(4), DrawTensors(staging)
    rows = [row(3)]
    for _ in range(200):
        kind = chance.integers(6)
        if kind == 0:
            rows = rows[: chance.integers(1, len(rows) + 1)]
        elif kind == 1:
            rows.insert(int(chance.integers(len(rows) + 1)), row(int(chance.integers(99)), int(chance.integers(2**62))))
        elif kind == 2:
            rows = [each._replace(position=each.position + int(chance.integers(2))) for each in rows]
        elif kind > 3:
            rows = [each._replace(position=each.position + 1) for each in rows]
        assert_told(tensors, rows)
    assert len(staging.uploads) < 3 * 120
