"""Connections that are kept between statements: the same one again, never a broken one, all given back at the end."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.db import pools
from gateway.db.lanes import Lanes

PID = "SELECT pg_backend_pid()"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with pools.create(database_url, connections_max=2) as pool:
        yield pool


async def pid(lanes: Lanes) -> int:
    [[found]] = await lanes.fetch(PID, timeout_s=30)
    return found


async def test_statements_follow_each_other_on_a_connection_that_is_kept(pool: asyncpg.Pool) -> None:
    async with Lanes(pool, 1) as lanes:
        assert await pid(lanes) == await pid(lanes)
        assert pool.get_idle_size() == 0
    assert pool.get_idle_size() == 1


async def test_outside_its_context_nothing_is_kept(pool: asyncpg.Pool) -> None:
    await pid(Lanes(pool, 1))
    assert pool.get_idle_size() == 1


async def test_a_connection_that_was_closed_meanwhile_is_not_used_again(pool: asyncpg.Pool) -> None:
    async with Lanes(pool, 1) as lanes:
        first = await pid(lanes)
        await pool.execute("SELECT pg_terminate_backend($1, 10000)", first)
        async with asyncio.timeout(30):
            while pool.get_size() > 1:  # until the driver has heard of it
                await asyncio.sleep(0.01)
        assert await pid(lanes) != first


async def test_a_connection_that_was_idle_for_long_is_not_trusted(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Lanes(pool, 1) as lanes:
        first = await pid(lanes)
        monkeypatch.setattr("gateway.db.lanes.IDLE_S", 0.0)
        assert await pid(lanes) != first
        assert pool.get_size() == 1


async def test_a_statement_that_was_cut_off_or_failed_leaves_its_connection_to_the_pool(pool: asyncpg.Pool) -> None:
    async with Lanes(pool, 1) as lanes:
        for statement, timeout_s, fault in (
            ("SELECT pg_sleep(30)", 0.2, TimeoutError),
            ("SELECT 1 / 0", 30, asyncpg.DivisionByZeroError),
        ):
            with pytest.raises(fault):
                await lanes.fetch(statement, timeout_s=timeout_s)
            assert not lanes._kept
            await pid(lanes)


async def test_no_more_statements_run_at_once_than_there_are_lanes(pool: asyncpg.Pool) -> None:
    async with Lanes(pool, 1) as lanes:
        assert len({*await asyncio.gather(*(pid(lanes) for _ in range(8)))}) == 1
