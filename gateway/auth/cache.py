"""A bounded cache of keys as they were last read, and of ids that no key has. Does no reading itself and has no clock.

Invariants: an entry that was read before a change was noticed is never fresh after it. So a read begins with
`generation` and is stored under it; if a change was noticed in between, the entry starts as stale. And a key that was
refused is due for a reading exactly when an unknown id is, or the time of a refusal would tell which ids exist.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gateway.db.changes import ALL, Changed


class OfTenant(Protocol):
    @property
    def tenant_id(self) -> uuid.UUID: ...


V = TypeVar("V", bound=OfTenant)


@dataclass(slots=True)
class Entry(Generic[V]):
    value: V
    stale: bool
    refused_until_s: float = 0.0  # until when a refusal needs no reading, as of an unknown id


class KeyCache(Generic[V]):
    def __init__(self, *, known_max: int, unknown_max: int, unknown_s: float) -> None:
        self._known: OrderedDict[str, Entry[V]] = OrderedDict()  # least recently used first
        self._unknown: OrderedDict[str, float] = OrderedDict()  # public id -> expiry, oldest first
        self._known_max = known_max
        self._unknown_max = unknown_max
        self._unknown_s = unknown_s
        self.generation = 0

    def known(self, public_id: str) -> Entry[V] | None:
        entry = self._known.get(public_id)
        if entry is not None:
            self._known.move_to_end(public_id)
        return entry

    def values(self) -> Iterator[V]:
        """The values of all known keys, fresh or stale."""
        return (entry.value for entry in self._known.values())

    def is_unknown(self, public_id: str, now_s: float) -> bool:
        return now_s < self._unknown.get(public_id, now_s)

    def put(self, public_id: str, value: V, *, generation: int) -> Entry[V]:
        entry = Entry(value, stale=generation != self.generation)
        self._known[public_id] = entry
        self._known.move_to_end(public_id)
        if len(self._known) > self._known_max:
            self._known.popitem(last=False)
        return entry

    def put_unknown(self, public_id: str, now_s: float, *, generation: int) -> None:
        self._known.pop(public_id, None)
        if generation != self.generation:
            return
        self._unknown[public_id] = now_s + self._unknown_s
        self._unknown.move_to_end(public_id)
        if len(self._unknown) > self._unknown_max:
            self._unknown.popitem(last=False)

    def is_refused(self, public_id: str, now_s: float) -> bool:
        """Whether a refusal of this known key was preceded by a reading not long ago."""
        entry = self._known.get(public_id)
        return entry is not None and now_s < entry.refused_until_s

    def note_refused(self, public_id: str, now_s: float) -> None:
        """The key was just read, and is refused. A key that is not known is left alone."""
        entry = self._known.get(public_id)
        if entry is not None and not entry.stale:
            entry.refused_until_s = now_s + self._unknown_s

    def invalidate(self, changed: Changed) -> None:
        """Mark these tenants' entries as stale, and every unknown id too: the change may have created that key. With
        the unknown ids, refused keys are due.
        """
        if not changed:
            return
        self.generation += 1
        self._unknown.clear()
        for entry in self._known.values():
            entry.refused_until_s = 0.0
            if changed == ALL or entry.value.tenant_id in changed:
                entry.stale = True
