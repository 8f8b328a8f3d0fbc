"""Time that a test moves."""

from dataclasses import dataclass


@dataclass
class HandClock:
    """Moved by hand."""

    now: float = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now
