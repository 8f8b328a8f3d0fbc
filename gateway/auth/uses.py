"""The last day on which each key was used: written once per key and day, and never while a request waits.

Days are in UTC. A use is written to Postgres within FLUSH_S; what a killed gateway had not written is lost until the
key's next use. Invariant: at most KEYS_MAX keys are remembered; beyond them, keys are written again.
"""

import asyncio
import uuid
from datetime import UTC, date, datetime
from types import TracebackType
from typing import Final, Self

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db import pools, queries
from shared import log, tasks
from shared.clock import Clock, SystemClock

KEYS_MAX: Final = 20_000
FLUSH_S: Final = 30.0
TIMEOUT_S: Final = 5.0

_FAULTS: Final = (SQLAlchemyError, *pools.AWAY)


class KeyUses:
    """Use with `async with`: uses are written every FLUSH_S inside, and a last time on leaving."""

    def __init__(self, engine: AsyncEngine, *, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()
        self._log = log.get("uses")
        self._today = date.min
        self._written: set[uuid.UUID] = set()
        self._waiting: dict[uuid.UUID, date] = {}

    def note(self, key_id: uuid.UUID) -> None:
        """The key was used just now."""
        today = datetime.fromtimestamp(self._clock.wall(), UTC).date()
        if today != self._today:
            self._today = today
            self._written.clear()
        if key_id not in self._written and len(self._waiting) < KEYS_MAX:
            self._waiting[key_id] = today

    async def __aenter__(self) -> Self:
        self._teller = asyncio.create_task(tasks.keep(self._tell, "key uses"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await tasks.stop([self._teller])
        await self.flush()

    async def flush(self) -> None:
        """Write the uses that are pending. While Postgres is away, they stay pending."""
        if not self._waiting:
            return
        batch = dict(self._waiting)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await queries.note_uses(self._engine, batch)
        except _FAULTS as error:
            self._log.warning("key_uses.not_told", keys=len(batch), error=type(error).__name__)
            return
        self._waiting = {key: day for key, day in self._waiting.items() if batch.get(key) != day}
        if len(self._written) + len(batch) > KEYS_MAX:
            self._written.clear()
        self._written |= {key for key, day in batch.items() if day == self._today}

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()
