"""Sequences in order of urgency: (tier, arrival)."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from worker.engine.sequence import Sequence

_urgency = attrgetter("urgency")


class SequenceQueue:
    """A sorted list. At the sizes in question (hundreds) moving pointers beats any tree."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        """Over the queue as it is now: it may change meanwhile."""
        return iter(self._items[:])

    def head(self) -> Sequence:
        return self._items[0]

    def add(self, sequence: Sequence) -> None:
        insort(self._items, sequence, key=_urgency)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._items, sequence.urgency, key=_urgency)
        assert self._items[index] is sequence, "the sequence is not in this queue"
        del self._items[index]
