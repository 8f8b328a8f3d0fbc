"""Percentiles of a sample. Pure; knows no units."""

import math
from collections.abc import Iterable, Sequence

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """The percentiles that are reported of every sample, in its own unit."""

    p50: float
    p95: float
    p99: float

    def scaled(self, factor: float) -> "Spread":
        return Spread(self.p50 * factor, self.p95 * factor, self.p99 * factor)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of an ascending, non-empty sequence, interpolated between the two nearest ranks: 0 is the first value, 100 the
    last.
    """
    assert ordered
    assert 0 <= percent <= 100, percent
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Iterable[float]) -> Spread | None:
    """None for an empty sample."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(percentile(ordered, 50), percentile(ordered, 95), percentile(ordered, 99))


def jain(shares: Sequence[float]) -> float:
    """How even shares are: 1 when all are equal, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
