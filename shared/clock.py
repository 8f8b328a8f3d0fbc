"""Time as a value that is passed in, so that pure code never reads it and tests can move it."""

import time
from typing import Protocol


class Clock(Protocol):
    """`monotonic` for durations and deadlines, `wall` for what is written down. Both in seconds."""

    def monotonic(self) -> float: ...

    def wall(self) -> float: ...


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
