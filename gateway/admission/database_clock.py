"""Notices that the clock of Postgres was set, and lets buckets fill by it again if it was set back.

A bucket is filled up to a moment of that clock, and does not fill again before the clock has passed it: a step back of
an hour, by NTP or with a virtual machine, would refuse everybody for an hour, with a Retry-After that is untrue. Knows
nothing of limits. Invariant: no level is changed, so no time counts twice but what had been counted too early.
"""

from collections.abc import Callable
from typing import Final

import asyncpg

from gateway.db import pools
from shared import log

TIMEOUT_S: Final = 2.0
STEP_US: Final = 1_000_000  # less is what machines differ by, and passes by itself

# In key order, as admissions lock them; what one holds just now is found at the next look.
_REWIND: Final = (
    "UPDATE limiter_state s SET at_us = ahead.now_us FROM ("
    "  SELECT b.key, c.now_us FROM limiter_state b, (SELECT clock_us() AS now_us) AS c"
    "  WHERE b.at_us > c.now_us ORDER BY b.key FOR UPDATE OF b SKIP LOCKED) AS ahead WHERE s.key = ahead.key"
)
LOOKS: Final = 3  # after a step


class DatabaseClock:
    """`now_us` is this machine's own, which is never set."""

    def __init__(self, pool: asyncpg.Pool, now_us: Callable[[], int]) -> None:
        self._pool = pool
        self._now_us = now_us
        self._ahead_us: int | None = None  # of ours, when it was last observed
        self._looks = 0
        self._log = log.get("limiter")

    async def observe(self, database_us: int) -> bool:
        """It was `database_us` there just now. Whether that was to be expected. Raises what `pools.AWAY` names."""
        ahead_us = database_us - self._now_us()
        step_us = 0 if self._ahead_us is None else ahead_us - self._ahead_us
        self._ahead_us = ahead_us
        if abs(step_us) > STEP_US:
            self._log.warning("limiter.postgres_clock_set", seconds=step_us / 1_000_000)
        if step_us < -STEP_US:
            self._looks = LOOKS
        if self._looks:
            await pools.fetch(self._pool, _REWIND, timeout_s=TIMEOUT_S)
            self._looks -= 1
        return abs(step_us) <= STEP_US
