"""Connections that are kept between statements: the same one again, never a broken one, all given back at the end."""

import asyncio
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import asyncpg
import pytest
from sqlalchemy import text

from gateway.db import engine, pools
from gateway.db.lanes import Lanes
from tests.proxy import through_proxy

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


async def test_one_that_does_not_answer_takes_along_those_that_were_idle_before(database_url: str) -> None:
    """As after a failover: they all lead to a server that is gone, and each would cost a request its answer."""
    async with (
        through_proxy(database_url) as (proxy, url),
        pools.create(url, connections_max=3) as pool,
        Lanes(pool, 3) as lanes,
    ):
        await asyncio.gather(*(lanes.fetch("SELECT pg_sleep(0.2)", timeout_s=30) for _ in range(3)))
        assert len(lanes._kept) == 3
        proxy.forget()
        with pytest.raises(TimeoutError):
            await lanes.fetch(PID, timeout_s=0.2)
        await pid(lanes)
        assert pool.get_size() == 1


async def test_what_serves_holds_no_locks_for_long_once_its_machine_is_gone(
    pool: asyncpg.Pool, database_url: str
) -> None:
    database = engine.create(database_url, serves=True)
    try:
        async with database.connect() as connection:
            for name, value in engine.SESSION.items():
                assert await pool.fetchval("SELECT current_setting($1)", name) == value
                assert (await connection.scalar(text(f"SHOW {name}"))) == value
    finally:
        await database.dispose()


async def test_an_engine_does_not_ask_a_connection_that_a_firewall_may_have_forgotten(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with through_proxy(database_url) as (proxy, url):
        database = engine.create(url, connections_max=1)
        try:
            async with database.connect() as connection:
                await connection.execute(text("SELECT 1"))
            proxy.forget()
            later_s = time.time() + engine.IDLE_S + 1
            monkeypatch.setattr("sqlalchemy.pool.base.time", SimpleNamespace(time=lambda: later_s))
            async with database.connect() as connection:
                assert await connection.scalar(text("SELECT 1")) == 1
        finally:
            await database.dispose()
