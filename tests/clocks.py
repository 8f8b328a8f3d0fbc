"""Clocks for tests: one that a test moves, and one whose numbers mean nothing to any other clock."""

import time
from dataclasses import dataclass, field


@dataclass
class HandClock:
    """Stands still until the test moves it."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now


@dataclass
class OwnEpoch:
    """Runs in real time, from an epoch of its own."""

    began: float = field(default_factory=time.monotonic)

    def monotonic(self) -> float:
        return time.monotonic() - self.began

    def wall(self) -> float:
        return time.time()
