"""The driver's own connection pools, for the hot path, and the exceptions that mean that Postgres cannot answer.

One pool per use, so that a ledger that catches up cannot starve admissions. A pool connects when it is first used.
"""

import asyncio
from typing import Any, Final

import asyncpg

from gateway.db.engine import CONNECT_TIMEOUT_S, IDLE_S, ISOLATION, SESSION, WRITABLE

# Whatever a call of a fixed statement with checked arguments can raise: the connection is gone, the server is
# starting, stopping, full, read-only or not migrated. None of it is a decision.
AWAY: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

DEADLOCK_ATTEMPTS_MAX: Final = 3


def create(url: str, *, connections_max: int, pooler: bool = False) -> asyncpg.Pool:
    """A pool, to be entered with `async with`. `pooler`: the URL leads to one in transaction mode, so no statement
    may be prepared by name (an admission then takes a second round trip: p50 0.62 ms instead of 0.37 ms), and what a
    session is to be like is the pooler's to say.
    """
    session = {"application_name": "forebay", "default_transaction_isolation": ISOLATION, **SESSION}
    return asyncpg.create_pool(
        url,
        min_size=0,
        max_size=connections_max,
        timeout=CONNECT_TIMEOUT_S,
        target_session_attrs=WRITABLE,
        reset=_keep,
        statement_cache_size=0 if pooler else 100,
        server_settings={} if pooler else session,
        max_inactive_connection_lifetime=IDLE_S,
    )


async def _keep(_: asyncpg.Connection) -> None:
    """In place of the driver's `RESET ALL` after every use, a second round trip: nothing here sets session state, and
    the driver rolls an open transaction back in any case.
    """


async def fetch(pool: asyncpg.Pool, statement: str, *values: Any, timeout_s: float) -> list[asyncpg.Record]:
    """Rows of one statement, within `timeout_s` in all; repeated if Postgres chose it as a deadlock's victim. Raises
    what AWAY lists.
    """
    async with asyncio.timeout(timeout_s):
        for _ in range(DEADLOCK_ATTEMPTS_MAX - 1):
            try:
                return await _fetch(pool, statement, values, timeout_s)
            except asyncpg.DeadlockDetectedError:
                continue
        return await _fetch(pool, statement, values, timeout_s)


async def _fetch(pool: asyncpg.Pool, statement: str, values: tuple[Any, ...], timeout_s: float) -> list[asyncpg.Record]:
    async with pool.acquire(timeout=timeout_s) as connection:
        return await connection.fetch(statement, *values)
