"""Failure detection: which peers have fallen silent. A pure function of heartbeats and the time; no I/O and no clock.

Invariant: a peer counts as silent only if our own beats came back throughout the time in question. A process that is
cut off, or too busy to receive its own beats, must not judge others: it would declare the whole fleet dead.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Silence:
    """A peer without a beat for `limit_s` is silent. Times are monotonic seconds."""

    limit_s: float
    _own_at: float | None = None
    _hearing_since: float | None = None
    _heard_at: dict[str, float] = field(default_factory=dict[str, float])

    @property
    def own_limit_s(self) -> float:
        """The age of our own last beat up to which others are judged. Well below `limit_s`: when the bus stops, the
        others' last beats may be a little older than ours, and must not exceed the limit before judging stops.
        """
        return self.limit_s / 2

    def own_beat(self, now: float) -> None:
        """Our own beat came back. After a pause, the time without a beat starts again for all peers."""
        if self._own_at is None or now - self._own_at > self.own_limit_s:
            self._hearing_since = now
        self._own_at = now

    def reset(self) -> None:
        """The connection was lost: nobody is judged until our own beats come back."""
        self._own_at = None
        self._hearing_since = None

    def heard(self, peer: str, now: float) -> None:
        self._heard_at[peer] = now

    def watch(self, peer: str, now: float) -> None:
        """Expect beats of `peer` from now on, if it was never heard before."""
        self._heard_at.setdefault(peer, now)

    def forget(self, peer: str) -> None:
        self._heard_at.pop(peer, None)

    def peers(self) -> list[str]:
        return list(self._heard_at)

    def judging(self, now: float) -> bool:
        return self._own_at is not None and now - self._own_at <= self.own_limit_s

    def silent_s(self, peer: str, now: float) -> float:
        """Seconds since `peer` was last heard; 0 for one that is not watched."""
        return now - self._heard_at.get(peer, now)

    def is_silent(self, peer: str, now: float) -> bool:
        """False for a peer that is not watched."""
        heard_at = self._heard_at.get(peer)
        if heard_at is None or self._hearing_since is None or not self.judging(now):
            return False
        return now - max(heard_at, self._hearing_since) > self.limit_s

    def silent(self, now: float) -> list[str]:
        return [peer for peer in self._heard_at if self.is_silent(peer, now)]
