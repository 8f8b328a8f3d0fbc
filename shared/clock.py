"""Time as a value that is passed in, so that pure code never reads a clock and tests can set it."""

import time
from typing import Protocol


class Clock(Protocol):
    """`monotonic` is for durations and deadlines, `wall` for times that are stored. Both in seconds."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
