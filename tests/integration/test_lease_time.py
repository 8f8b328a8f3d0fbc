"""A step of Postgres' clock neither ends the leases of gateways that live nor keeps those of gateways that died."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.db import pools
from tests.demands import again, demand, limit
from tests.integration.test_limiter import admit

LEASE_MS = 60_000  # longer than any machine takes for the calls of a test
STEPS = ("1 hour", "-1 hour")


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """Connections for which the clock is ahead by what the table `step` says."""
    administrator = await asyncpg.connect(database_url)
    name = await administrator.fetchval("SELECT current_database()")
    await administrator.execute(
        "CREATE TABLE step AS SELECT interval '0' AS by;"
        "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
        " $$ SELECT pg_catalog.clock_timestamp() + (SELECT by FROM public.step) $$;"
        f'ALTER DATABASE "{name}" SET search_path = public, pg_catalog'
    )
    await administrator.close()
    async with pools.create(database_url, connections_max=2) as pool:
        yield pool


async def renew(pool: asyncpg.Pool, gateway: str, *requests: object) -> int:
    """How many gateways are alive."""
    return await pool.fetchval("SELECT gateways FROM renew($1, $2, $3)", gateway, requests, LEASE_MS)


async def step(pool: asyncpg.Pool, by: str) -> None:
    await pool.execute("UPDATE step SET by = by + $1::text::interval", by)


@pytest.mark.parametrize("by", STEPS)
async def test_a_step_of_the_clock_ends_no_lease_of_a_gateway_that_lives(pool: asyncpg.Pool, by: str) -> None:
    ours, theirs = demand(limit("concurrency", 2)), demand(limit("concurrency", 2))
    for gateway, one in (("gw-a", ours), ("gw-b", theirs)):
        assert (await admit(pool, one))["refused"] is None
        await renew(pool, gateway, one.request_id)
    await step(pool, by)
    assert (await admit(pool, again(ours)))["refused"] == 1  # before anybody has noticed
    assert await renew(pool, "gw-a", ours.request_id) == 2
    assert await pool.fetchval("SELECT expire_leases(10)") == 0
    assert (await admit(pool, again(ours)))["refused"] == 1
    assert await renew(pool, "gw-b", theirs.request_id) == 2


@pytest.mark.parametrize("by", STEPS)
async def test_after_a_step_of_the_clock_the_leases_of_a_gateway_that_died_still_end(
    pool: asyncpg.Pool, by: str
) -> None:
    one = demand(limit("concurrency", 1))
    assert (await admit(pool, one))["refused"] is None
    await renew(pool, "gw-dead", one.request_id)
    await step(pool, by)
    alive = await renew(pool, "gw-alive")
    assert alive == 2
    refused = await admit(pool, again(one))
    assert refused["refused"] == 1
    assert 0 < refused["retry_after_us"] <= LEASE_MS * 1_000
    assert await pool.fetchval("SELECT expire_leases(10)") == 0
    for _ in range(LEASE_MS // 7_000 + 1):
        await step(pool, "7 seconds")
        alive = await renew(pool, "gw-alive")
    assert alive == 1
    assert (await admit(pool, again(one)))["refused"] is None
    assert await pool.fetchval("SELECT expire_leases(10)") == 1
