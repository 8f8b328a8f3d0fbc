"""What is derived from booked events: their hourly and daily sums, and the time until which bills are complete.

Any number of ledgers maintain the same sums. One at a time adds new lines to the rollups, in the order of transactions
and not of times, so that a line that commits late is neither skipped nor counted twice (`roll_up_usage` in the schema).
Invariant: `complete_until` never names a time before which NATS had acknowledged an event that is not booked.
"""

import asyncio
from datetime import datetime, timedelta
from typing import Final

import asyncpg
import msgspec

from gateway.db import pools
from shared import jobs, log, subjects
from shared.bus import Bus, BusError

PERIOD_S: Final = 5.0
LINES_MAX: Final = 20_000  # taken into the rollups in one transaction
STATEMENT_TIMEOUT_S: Final = 30.0
# For what the server may store between the reading of the stream and of its clock.
LOOK_SLACK: Final = timedelta(seconds=1)

_ROLL_UP: Final = "SELECT roll_up_usage($1)"
_NOTE: Final = (
    "INSERT INTO usage_completeness AS c (complete_until, pending, observed_at) VALUES ($1, $2, now())"
    " ON CONFLICT (single) DO UPDATE SET complete_until = greatest(c.complete_until, excluded.complete_until),"
    " pending = excluded.pending, observed_at = excluded.observed_at"
)


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """Every event that NATS had acknowledged before `complete_until` is booked; `pending` others wait in it."""

    complete_until: datetime
    pending: int


class Books:
    """`run` until cancelled, in parallel with the booking of events."""

    def __init__(self, bus: Bus, pool: asyncpg.Pool) -> None:
        self._bus = bus
        self._pool = pool
        self._log = log.get("books")
        self.completeness: Completeness | None = None

    async def run(self) -> None:
        while True:
            try:
                await self.roll_up()
                await self.look()
            except asyncpg.DataError as error:  # Postgres's answer, though it is in AWAY: a retry would get the same
                self._log.error("books.failed", error=repr(error))
            except (*pools.AWAY, BusError) as error:
                self._log.debug("books.waiting", error=repr(error))
            except Exception:  # noqa: BLE001  the outermost loop; events are booked without it
                self._log.exception("books.failed")
            await asyncio.sleep(PERIOD_S)

    async def roll_up(self) -> None:
        """Add all committed lines to the rollups. Raises what `pools.AWAY` names."""
        more = True
        while more:
            [[more]] = await pools.fetch(self._pool, _ROLL_UP, LINES_MAX, timeout_s=STATEMENT_TIMEOUT_S)

    async def look(self) -> None:
        """Find out how far events are booked, and store it. Raises BusError and what `pools.AWAY` names."""
        seen = completeness(await jobs.stream_info(self._bus, subjects.USAGE_STREAM))
        await pools.fetch(self._pool, _NOTE, seen.complete_until, seen.pending, timeout_s=STATEMENT_TIMEOUT_S)
        self.completeness = seen


def completeness(stream: jobs.StreamInfo) -> Completeness:
    """An event leaves the stream when it is committed, so the oldest one that is left is the first that is missing."""
    pending = stream.state.messages
    return Completeness(
        complete_until=stream.state.first_ts if pending else stream.ts - LOOK_SLACK,
        pending=pending,
    )
