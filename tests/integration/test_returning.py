"""Gateways that come back to Postgres: what they run counts again and is charged, and nobody's lease runs out only
because nobody could renew it."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import asyncpg
import pytest

from gateway.admission.bucket import UNITS
from gateway.admission.limiter import Demand, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from tests.demands import KEY, MODEL, TENANT, again, demand, limit

ONE = demand(limit("tokens", 1, burst=10_000), limit("concurrency", 2), limit("day_tokens", 1_000_000), tokens=4_000)
COUNTED = "SELECT count(*) FROM inflight WHERE state <> 'settled' AND expires_at > clock_timestamp()"
LAPSED = "SELECT count(*) FROM inflight WHERE expires_at = '-infinity'"
BUDGET = "SELECT budget_held('day_tokens', $1, $2, $3, false, false, clock_timestamp())"


@dataclass
class Time:
    """The clock of Postgres and that of the gateways. Both stand still until they are moved."""

    sql: asyncpg.Connection
    passed_us: int = 0

    def now_us(self) -> int:
        return self.passed_us

    async def passes(self, seconds: int) -> None:
        self.passed_us += seconds * 1_000_000
        await self.step(seconds)

    async def step(self, seconds: int) -> None:
        """Only Postgres' clock is set."""
        await self.sql.execute("UPDATE public.clock SET now_at = now_at + $1 * interval '1 second'", seconds)


@pytest.fixture
async def time(sql: asyncpg.Connection) -> Time:
    database = await sql.fetchval("SELECT current_database()")
    await sql.execute(f"""
        CREATE TABLE public.clock (now_at timestamptz);
        INSERT INTO public.clock VALUES ('2026-06-01 12:00:00+00');
        CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
            'SELECT c.now_at FROM public.clock c';
        ALTER DATABASE "{database}" SET search_path = public, pg_catalog;
    """)
    return Time(sql)


@dataclass
class Pair:
    """Two gateways that renew when they are told to."""

    a: PgLimiter
    b: PgLimiter

    async def settle(self, *requests: tuple[PgLimiter, Demand, int]) -> None:
        for limiter, one, tokens in requests:
            await limiter.settle(one.request_id, Used(tokens))
        for limiter in (self.a, self.b):
            await limiter._settling.drain(60)


@pytest.fixture
async def pair(database_url: str, time: Time, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pair]:
    monkeypatch.setattr("gateway.admission.pg_limiter.RENEW_S", 3_600)
    async with (
        pools.create(database_url, connections_max=4) as pool_a,
        pools.create(database_url, connections_max=4) as pool_b,
        PgLimiter(pool_a, gateway_id="gw-a", now_us=time.now_us) as a,
        PgLimiter(pool_b, gateway_id="gw-b", now_us=time.now_us) as b,
    ):
        async with asyncio.timeout(60):
            while any(limiter._leases._contact._since_us is None for limiter in (a, b)):
                await asyncio.sleep(0.01)
        yield Pair(a, b)


async def running(limiter: PgLimiter, number: int) -> list[Demand]:
    demands = [again(ONE) for _ in range(number)]
    for one in demands:
        assert (await limiter.admit(one)).refused is None
        limiter.started(one.request_id)
    await limiter._settling._write_starts()
    return demands


async def tokens_left(sql: asyncpg.Connection) -> int:
    return await sql.fetchval("SELECT level FROM limiter_state WHERE key = $1", f"tenant:{TENANT}/tokens") // UNITS


async def test_a_gateway_that_alone_was_cut_off_finds_its_requests_counted_and_charged(
    pair: Pair, time: Time, pool: asyncpg.Pool, sql: asyncpg.Connection
) -> None:
    cut_off = await running(pair.b, 2)
    for _ in range(3):
        await time.passes(5)
        await pair.a._upkeep()
    assert await pool.fetchval(LAPSED) == 0  # gw-a has not seen Postgres for long enough to know
    for _ in range(2):
        await time.passes(5)
        await pair.a._upkeep()
    assert await pool.fetchval(LAPSED) == 2
    assert await pool.fetchval(BUDGET, TENANT, KEY, MODEL) == 0
    assert await tokens_left(sql) == 10_000
    meanwhile = await running(pair.a, 2)  # gw-b may be dead
    await pair.b._upkeep()
    assert await pool.fetchval(COUNTED) == 4
    assert await pool.fetchval(BUDGET, TENANT, KEY, MODEL) == 16_000
    assert (await pair.a.admit(again(ONE, tokens=0))).refused_by == "concurrency"
    await pair.settle(*((pair.b, one, 3_500) for one in cut_off), *((pair.a, one, 1_000) for one in meanwhile))
    assert await pool.fetchval(COUNTED) == 0
    assert await tokens_left(sql) == 10_000 - 2 * 3_500 - 2 * 1_000


async def test_after_postgres_was_away_from_all_the_first_to_return_lets_nothing_lapse(
    pair: Pair, time: Time, pool: asyncpg.Pool, sql: asyncpg.Connection
) -> None:
    await running(pair.b, 2)
    for _ in range(5):
        await time.passes(5)
        await asyncio.gather(pair.a._upkeep(), pair.b._upkeep())
    await time.passes(20)
    await pair.a._upkeep()
    assert await pool.fetchval(COUNTED) == 0
    await pair.b._upkeep()
    assert await pool.fetchval(COUNTED) == 2
    assert await tokens_left(sql) == 2_000
    assert (await pair.a.admit(again(ONE, tokens=1))).refused_by == "concurrency"
    assert await pool.fetchval(LAPSED) == 0


@pytest.mark.parametrize("seconds", [60, 7_200])
async def test_no_lease_runs_out_because_the_clock_of_postgres_was_set_forward(
    pair: Pair, time: Time, pool: asyncpg.Pool, sql: asyncpg.Connection, seconds: int
) -> None:
    await running(pair.b, 2)
    for _ in range(5):
        await time.passes(5)
        await asyncio.gather(pair.a._upkeep(), pair.b._upkeep())
    await time.step(seconds)
    await pair.a._upkeep()
    assert await pool.fetchval(LAPSED) == 0
    await pair.b._upkeep()
    assert await pool.fetchval(COUNTED) == 2
    assert (await pair.a.admit(again(ONE, tokens=1))).refused_by == "concurrency"
    assert await tokens_left(sql) == 2_000
