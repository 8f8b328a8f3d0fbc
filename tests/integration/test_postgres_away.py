"""Postgres cut off or frozen under a running gateway: keys, limits and bills go on, and nothing is lost or doubled."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from gateway import keys
from gateway.admission.bucket import UNITS
from gateway.admission.limiter import Decision, Demand, Limit, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.auth.principals import Principals
from gateway.db import catalogue, engine, pools
from gateway.db.catalogue import Limits
from gateway.errors import InvalidKey, Unavailable
from gateway.ledger.writer import Writer
from tests.demands import TENANT, limit
from tests.demands import demand as demand_of
from tests.proxy import Proxy, through_proxy

TPM = 60_000  # 1,000 a second


@pytest.fixture
async def proxied(database_url: str) -> AsyncIterator[tuple[Proxy, str]]:
    async with through_proxy(database_url) as proxied:
        yield proxied


@pytest.fixture
async def proxy(proxied: tuple[Proxy, str]) -> Proxy:
    return proxied[0]


@pytest.fixture
async def limiter(proxied: tuple[Proxy, str]) -> AsyncIterator[PgLimiter]:
    async with (
        pools.create(proxied[1], connections_max=4) as pool,
        PgLimiter(pool, gateway_id="gw") as limiter,
    ):
        yield limiter


def demand(tokens: int, *more: Limit) -> Demand:
    return demand_of(limit("tokens", TPM), limit("requests", TPM), *more, tokens=tokens)


async def until_grace(limiter: PgLimiter, expected: bool) -> None:
    async with asyncio.timeout(60):
        while limiter.in_grace != expected:
            await asyncio.sleep(0.02)


async def renewal(sql: asyncpg.Connection, after: dt.datetime | None) -> dt.datetime:
    """Until when the gateway is known to live, once that is later than `after`."""
    async with asyncio.timeout(60):
        while True:
            until = await sql.fetchval("SELECT expires_at FROM gateways")
            if until is not None and (after is None or until > after):
                return until
            await asyncio.sleep(0.02)


async def admit_in_grace(limiter: PgLimiter, tokens: int) -> Demand:
    """The share starts empty, so the first one has to wait for it to fill."""
    async with asyncio.timeout(60):
        while True:
            one = demand(tokens)
            if (await limiter.admit(one)).refused_by is None:
                return one
            await asyncio.sleep(0.02)


async def test_a_cut_is_bridged_by_a_share_that_is_charged_on_return(
    limiter: PgLimiter, proxy: Proxy, sql: asyncpg.Connection
) -> None:
    before = demand(500)
    assert (await limiter.admit(before)).refused_by is None
    renewed_at = await renewal(sql, None)
    await proxy.cut()
    refused = await limiter.admit(demand(TPM))
    assert limiter.in_grace
    assert refused.retry_after_ms is not None
    settled, still_open = await admit_in_grace(limiter, 400), await admit_in_grace(limiter, 300)
    await limiter.settle(settled.request_id, Used(100))
    await limiter.settle(before.request_id, Used(50))
    await sql.execute("UPDATE limiter_state SET level = 10 * $1, at_us = clock_us() + 10^12::bigint", UNITS)
    await sql.execute("ALTER FUNCTION debit_buckets RENAME TO elsewhere")
    await proxy.listen()
    for _ in range(2):  # with the second renewal the first attempt to pay is behind us
        renewed_at = await renewal(sql, renewed_at)
    assert limiter.in_grace
    await sql.execute("ALTER FUNCTION elsewhere RENAME TO debit_buckets")
    await until_grace(limiter, False)
    held = await sql.fetch("SELECT request_id, state FROM inflight WHERE state <> 'settled'")
    assert [tuple(row) for row in held] == [(still_open.request_id, "queued")]  # it counts from now on
    await limiter.settle(still_open.request_id, Used(200))

    async def level(metric: str) -> float:
        return await sql.fetchval("SELECT level FROM limiter_state WHERE key = $1", f"tenant:{TENANT}/{metric}") / UNITS

    async with asyncio.timeout(60):
        while await level("tokens") != 10 - 100 - 200 + (500 - 50):
            await asyncio.sleep(0.02)
    async with asyncio.timeout(60):
        while await level("requests") != 10 - 2:
            await asyncio.sleep(0.02)
    assert await sql.fetchval("SELECT state FROM inflight WHERE request_id = $1", before.request_id) == "settled"


async def test_the_share_is_divided_by_the_live_gateways(
    limiter: PgLimiter, proxy: Proxy, sql: asyncpg.Connection
) -> None:
    await sql.execute(
        "INSERT INTO gateways SELECT 'other-' || n, now() + interval '1 hour' FROM generate_series(1, 3) n"
    )
    limiter._upkeep_due.set()
    async with asyncio.timeout(60):
        while limiter._gateways != 4:
            await asyncio.sleep(0.02)
    await proxy.cut()
    with pytest.raises(Unavailable):
        await limiter.admit(demand(TPM // 4 + 1))
    decision = await limiter.admit(demand(TPM // 4))
    assert (decision.refused_by, [state.limit for state in decision.states]) == ("tokens", [TPM // 4, TPM // 4])


async def test_a_frozen_server_is_found_out_and_bridged(limiter: PgLimiter, proxy: Proxy) -> None:
    assert (await limiter.admit(demand(1))).refused_by is None
    proxy.freeze()
    with pytest.raises(Unavailable):
        await limiter.admit(demand(1))
    await until_grace(limiter, True)
    await admit_in_grace(limiter, 1)
    proxy.thaw()
    await until_grace(limiter, False)
    assert (await limiter.admit(demand(1))).refused_by is None


async def _admission_without_answer(
    limiter: PgLimiter, proxy: Proxy, sql: asyncpg.Connection
) -> tuple[asyncio.Task[Decision], Demand]:
    """An admission that is reserved and waits to hear so. One that has to open a connection first does not get that
    far, as a handshake needs answers: then the next one.
    """
    while True:
        proxy.thaw()
        while (await limiter.admit(demand(1))).refused_by is not None or limiter.in_grace:
            await asyncio.sleep(0.02)
        one = demand(TPM - 10_000)
        proxy.hold_answers()
        pending = asyncio.create_task(limiter.admit(one))
        while not pending.done():
            if await sql.fetchval("SELECT true FROM inflight WHERE request_id = $1", one.request_id):
                return pending, one
            await asyncio.sleep(0.02)
        with contextlib.suppress(Unavailable):
            await pending


@pytest.mark.parametrize("hosts", ["one", "two"])
async def test_a_server_that_takes_no_writes_is_away_until_it_does(
    database_url: str, sql: asyncpg.Connection, hosts: str
) -> None:
    """As a standby is that the address still leads to: whoever kept a connection to it would be refused for ever."""
    before, _, host = database_url.rpartition("@")
    url = database_url if hosts == "one" else f"{before}@127.0.0.1:1,{host}"
    name = await sql.fetchval("SELECT current_database()")
    await sql.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    database = engine.create(url)
    try:
        async with pools.create(url, connections_max=1) as pool:
            with pytest.raises(pools.AWAY):
                await pools.fetch(pool, "SELECT 1", timeout_s=30)
            with pytest.raises((SQLAlchemyError, *pools.AWAY)):
                await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits())
            await sql.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')
            await pools.fetch(pool, "DELETE FROM inflight", timeout_s=30)
            await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits())
    finally:
        await database.dispose()


@pytest.mark.usefixtures("patient_limits")
async def test_a_server_whose_transactions_are_stricter_by_default_is_not_taken_for_an_outage(
    database_url: str, sql: asyncpg.Connection
) -> None:
    """Where reads are repeatable, those who wait for a bucket's row are turned away once it has changed."""
    name = await sql.fetchval("SELECT current_database()")
    await sql.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'")
    async with pools.create(database_url, connections_max=8) as pool, PgLimiter(pool, gateway_id="gw") as limiter:
        decisions = await asyncio.gather(*(limiter.admit(demand(1)) for _ in range(100)))
        assert all(decision.refused_by is None for decision in decisions)
        assert not limiter.in_grace
    database = engine.create(database_url)
    async with database.connect() as connection:
        assert (await connection.execute(text("SHOW transaction_isolation"))).scalar_one() == "read committed"
    await database.dispose()


@pytest.mark.parametrize("end", ["client leaves", "no answer in time"])
async def test_an_admission_whose_answer_is_lost_is_given_back(
    limiter: PgLimiter, proxy: Proxy, sql: asyncpg.Connection, end: str
) -> None:
    reserved = "SELECT true FROM inflight WHERE request_id = $1 AND state <> 'settled'"
    pending, one = await _admission_without_answer(limiter, proxy, sql)
    if end == "client leaves":
        pending.cancel()
    with pytest.raises((asyncio.CancelledError, Unavailable)):
        await pending
    proxy.thaw()
    async with asyncio.timeout(60):
        while await sql.fetchval(reserved, one.request_id):
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("patient_limits")
async def test_a_burst_beyond_the_connections_is_not_taken_for_an_outage(limiter: PgLimiter) -> None:
    decisions = await asyncio.gather(*(limiter.admit(demand(1)) for _ in range(200)))
    assert all(decision.refused_by is None for decision in decisions)
    assert not limiter.in_grace


async def test_settlements_wait_for_postgres_and_do_not_hold_up_the_answer(
    limiter: PgLimiter, proxy: Proxy, sql: asyncpg.Connection
) -> None:
    one = demand(500)
    await limiter.admit(one)
    await proxy.cut()
    async with asyncio.timeout(20):
        await limiter.settle(one.request_id, Used(1))
    await proxy.listen()
    async with asyncio.timeout(60):
        while await sql.fetchval("SELECT state FROM inflight") != "settled":
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("fault", ["cut", "frozen"])
async def test_known_keys_go_on_and_unknown_ones_are_neither_refused_nor_let_in(
    proxied: tuple[Proxy, str], database_url: str, fault: str
) -> None:
    proxy, url = proxied
    direct, database = engine.create(database_url), engine.create(url)
    try:
        await catalogue.create_tenant(direct, "acme", plan="standard", limits=Limits())
        (known, known_record), (unseen, unseen_record) = keys.generate("test"), keys.generate("test")
        for record in (known_record, unseen_record):
            await catalogue.create_key(direct, "acme", record, scopes=frozenset({"inference"}))
        async with Principals(database) as principals:
            await principals.resolve([f"Bearer {known}"])
            if fault == "cut":
                await proxy.cut()
            else:
                proxy.freeze()
            for _ in range(2):
                assert (await principals.resolve([f"Bearer {known}"])).tenant == "acme"
                with pytest.raises(Unavailable):
                    await principals.resolve([f"Bearer {unseen}"])
                await asyncio.sleep(1)
            await catalogue.revoke_key(direct, known_record.public_id)
            if fault == "cut":
                await proxy.listen()
            else:
                proxy.thaw()
            async with asyncio.timeout(60):
                while (await resolved(principals, unseen)) != "acme":
                    await asyncio.sleep(0.05)
                while (await resolved(principals, known)) is not None:
                    await asyncio.sleep(0.05)
    finally:
        await direct.dispose()
        await database.dispose()


async def resolved(principals: Principals, key: str) -> str | None:
    try:
        return (await principals.resolve([f"Bearer {key}"])).tenant
    except InvalidKey:
        return None
    except Unavailable:
        return "unavailable"


async def test_the_ledgers_write_fails_as_a_whole_and_can_be_repeated(proxied: tuple[Proxy, str]) -> None:
    from tests.integration.test_ledger import payload

    proxy, url = proxied
    batch = [payload() for _ in range(5)]
    async with pools.create(url, connections_max=2) as pool:
        writer = Writer(pool)
        await writer.write(batch[:2])
        await proxy.cut()
        with pytest.raises(pools.AWAY):
            await writer.write(batch)
        await proxy.listen()
        await writer.write(batch)
        assert await pool.fetchval("SELECT count(*) FROM usage_events") == 5
