"""A client whose request has ended, while its settlement takes longer than its answer waited for it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from gateway.admission import pg_limiter
from gateway.admission.limiter import Demand, Used
from gateway.admission.pg_limiter import PgLimiter
from tests.demands import again, demand, limit


@contextlib.asynccontextmanager
async def overdue(pool: asyncpg.Pool, limiter: PgLimiter, one: Demand) -> AsyncGenerator[None]:
    """The request has ended, and an operator holds its row of `inflight`, so its settlement takes too long."""
    assert (await limiter.admit(one)).refused_by is None
    limiter.started(one.request_id)
    async with pool.acquire() as operator, operator.transaction():
        await operator.execute("SELECT FROM inflight WHERE request_id = $1 FOR UPDATE", one.request_id)
        await limiter.settle(one.request_id, Used(1))
        yield


async def test_a_request_waits_for_the_settlement_of_the_one_before_it(
    pool: asyncpg.Pool, limiter: PgLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_limiter, "OVERDUE_WAIT_S", 60)
    one = demand(limit("concurrency", 1))
    async with overdue(pool, limiter, one):
        following = asyncio.create_task(limiter.admit(again(one)))
        await asyncio.wait([following], timeout=0.3)
        assert not following.done()
    assert (await following).refused_by is None


async def test_a_refusal_until_a_late_settlement_is_written_does_not_name_its_lease(
    pool: asyncpg.Pool, limiter: PgLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pg_limiter, "OVERDUE_WAIT_S", 0.02)
    one = demand(limit("concurrency", 1))
    async with overdue(pool, limiter, one):
        refused = await limiter.admit(again(one))
        assert (refused.refused_by, refused.retry_after_ms) == ("concurrency", 1_000)
    await limiter.drain(60)
    assert (await limiter.admit(again(one))).refused_by is None
