import random

import numpy as np
import pytest

from bench.percentiles import Spread, jain, percentile, spread


def test_interpolates_between_the_nearest_ranks() -> None:
    assert percentile([10.0, 20.0, 30.0, 40.0, 50.0], 50) == 30.0
    assert percentile([10.0, 20.0], 25) == 12.5
    assert percentile([1.0, 2.0, 3.0, 4.0], 0) == 1.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 100) == 4.0


def test_one_value_is_every_percentile() -> None:
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_an_empty_sample_has_none() -> None:
    assert spread([]) is None


@pytest.mark.parametrize("count", [2, 3, 99, 100, 101, 1_000])
def test_agrees_with_numpy_whatever_the_order(count: int) -> None:
    generator = random.Random(count)
    values = [generator.expovariate(1) for _ in range(count)]
    found = spread(iter(values))
    assert found is not None
    assert [found.p50, found.p95, found.p99] == pytest.approx(list(np.percentile(values, [50, 95, 99])))


def test_scales_to_another_unit() -> None:
    assert Spread(0.5, 1.0, 2.0).scaled(1_000) == Spread(500, 1_000, 2_000)


def test_jain_is_one_for_equal_shares_and_least_where_one_has_everything() -> None:
    assert jain([3, 3, 3]) == pytest.approx(1)
    assert jain([5, 0, 0, 0]) == pytest.approx(1 / 4)
    assert jain([1, 2]) == pytest.approx(0.9)
    assert jain([0, 0]) == 1
