"""Connections that are kept between statements, for the statements that every request waits for.

Taking a connection from the driver's pool and returning it costs two tasks and as much processor time as the statement
itself (docs/log.md), so busy users keep a few. Knows no statement of ours. Invariant: a connection is kept only after a
statement that succeeded, and not for long while idle, since a middlebox may drop it silently. In every other case it
goes back to the pool, which can recover it; one that did not answer in time takes along all that were idle before it
was asked, since they most likely lead to the same server that is gone.
"""

import asyncio
import time
from types import TracebackType
from typing import Any, Final, Self

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from gateway.db.engine import IDLE_S
from gateway.db.pools import DEADLOCK_ATTEMPTS_MAX

RELEASE_S: Final = 0.25  # for the server to confirm that a statement was cut off; then the connection is closed


class NoPlace(TimeoutError):
    """All lanes were taken for too long: the statement was not sent."""


class Lanes:
    """Runs at most `width` statements at a time; others wait. Connections are kept only inside its `async with`."""

    def __init__(self, pool: asyncpg.Pool, width: int) -> None:
        assert width >= 1
        self._pool = pool
        self._places = asyncio.Semaphore(width)
        self._kept: list[tuple[PoolConnectionProxy, float]] = []  # (which, since when it is idle)
        self._keeps = False

    async def __aenter__(self) -> Self:
        self._keeps = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keeps = False
        while self._kept:
            connection, _ = self._kept.pop()
            await self._pool.release(connection)

    async def fetch(self, statement: str, *values: Any, timeout_s: float) -> list[asyncpg.Record]:
        """As `pools.fetch`: rows of one statement, within `timeout_s` in all (and RELEASE_S if it was cut off), the
        wait for a place included; repeated if Postgres chose it as a deadlock's victim. Raises what `pools.AWAY` lists.
        """
        until_s = time.monotonic() + timeout_s
        await self._enter(timeout_s)
        try:
            for _ in range(DEADLOCK_ATTEMPTS_MAX - 1):
                try:
                    return await self._fetch(statement, values, until_s)
                except asyncpg.DeadlockDetectedError:
                    continue
            return await self._fetch(statement, values, until_s)
        finally:
            self._places.release()

    async def _enter(self, timeout_s: float) -> None:
        if not self._places.locked():
            await self._places.acquire()  # at once: the timeout would be most of the work
            return
        try:
            async with asyncio.timeout(timeout_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise NoPlace from error

    async def _fetch(self, statement: str, values: tuple[Any, ...], until_s: float) -> list[asyncpg.Record]:
        connection = await self._take() or await self._pool.acquire(timeout=_left_s(until_s))
        ended_well, asked_s = False, time.monotonic()
        try:
            rows = await connection.fetch(statement, *values, timeout=_left_s(until_s))
            ended_well = True
        except TimeoutError:
            self._drop(asked_s)
            raise
        finally:
            if not ended_well or not self._keeps:  # a server that does not answer is not waited for without end
                await self._pool.release(connection, timeout=RELEASE_S)
        if self._keeps:
            self._kept.append((connection, time.monotonic()))
        return rows

    async def _take(self) -> PoolConnectionProxy | None:
        while self._kept:
            connection, since = self._kept.pop()
            if _is_open(connection):
                if time.monotonic() - since < IDLE_S:
                    return connection
                connection.terminate()
            await self._pool.release(connection)
        return None

    def _drop(self, idle_since_s: float) -> None:
        """Close what has been idle since then; the pool takes the places back."""
        kept, self._kept = self._kept, []
        for connection, since in kept:
            if since > idle_since_s:
                self._kept.append((connection, since))
            elif _is_open(connection):
                connection.terminate()


def _left_s(until_s: float) -> float:
    """The remaining time, above 0."""
    return max(until_s - time.monotonic(), 0.001)


def _is_open(connection: PoolConnectionProxy) -> bool:
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:  # closed, and the pool has taken its place back
        return False
