"""Leases: there is one for each request that is open, wherever its client is cut off; they expire by themselves, and
come back after a crash of Postgres and after nothing else."""

import asyncio
import types
from collections.abc import AsyncIterator, Coroutine, Generator
from time import monotonic
from typing import Any

import asyncpg
import msgspec
import pytest

from gateway.admission.bucket import UNITS
from gateway.admission.generation import Generation
from gateway.admission.limiter import Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.api.exchange import Exchange
from gateway.api.services import Services
from gateway.db import pools
from gateway.dispatch.terms import Terms
from gateway.ledger.writer import Writer
from shared.ids import uuid7
from shared.trace import Off
from tests.demands import KEY, TENANT, again, demand, limit
from tests.integration.test_ledger import payload
from tests.scripted_gateway import Caller, Play, ScriptedDispatcher, ScriptedPrincipals, scripted_services
from tests.tiny_model import MODEL

BURST = 1_000_000
LIMITS = (limit("tokens", 1, burst=BURST), limit("requests", 1, burst=BURST), limit("concurrency", 100))
CALLER = Caller(tenant_id=TENANT, key_id=KEY, limits=LIMITS)
OPEN = "SELECT count(*) FROM inflight WHERE state <> 'settled'"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with pools.create(database_url, connections_max=6) as pool:
        yield pool


@pytest.fixture
async def limiter(pool: asyncpg.Pool, patient_limits: None) -> AsyncIterator[PgLimiter]:
    async with PgLimiter(pool, gateway_id="gw") as limiter:
        yield limiter


@pytest.fixture
async def services(limiter: PgLimiter) -> AsyncIterator[Services]:
    async with scripted_services(ScriptedPrincipals(), limiter, ScriptedDispatcher()) as services:
        yield services


async def request(services: Services) -> None:
    """All that is done for one request, but for HTTP."""
    generation = Generation(model=MODEL, prompts=("hi",), max_tokens=50)
    admitted = await services.admission.admit(
        CALLER, uuid7(), generation, wait_s=60, trace=Off().begin(None), check=lambda *_: None
    )
    exchange = Exchange(
        admitted,
        admission=services.admission,
        dispatcher=services.dispatcher,
        metrics=services.metrics,
        arrived_s=monotonic(),
    )
    try:
        await exchange.open(Terms(wait_s=60), 60)
        await exchange.await_first()
        while await exchange.next():
            pass
        await exchange.end()
    finally:
        await exchange.close()


async def by_and_by(play: Play) -> None:
    """Three tokens, each after a wait of its reader."""
    for number in range(3):
        await asyncio.sleep(0)
        play.send(play.chunk("x", finish="stop" if number == 2 else None))
    await asyncio.sleep(0)
    play.finish()


class Cut:
    """Counts the waits of a coroutine and has its task cancelled at one of them, just as it begins."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.waits = 0

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        error: BaseException | None = None
        while True:
            try:
                waited_for = work.send(None) if error is None else work.throw(error)
            except StopIteration:
                return
            if self.waits == self.at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            self.waits += 1
            error = None
            try:
                yield waited_for
            except BaseException as caught:  # noqa: BLE001 - handed on, whatever it is
                error = caught


async def test_a_client_that_is_cut_off_at_any_wait_leaves_no_lease_and_pays_what_it_used(
    pool: asyncpg.Pool, limiter: PgLimiter, services: Services
) -> None:
    dispatcher = services.dispatcher
    assert isinstance(dispatcher, ScriptedDispatcher)
    dispatcher.script = by_and_by
    cancelled = 0
    for at in range(200):
        cut = Cut(at)

        async def run(cut: Cut = cut) -> None:
            await cut.run(request(services))

        [outcome] = await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError | None)
        await limiter.drain(60)
        assert await pool.fetchval(OPEN) == 0, f"cut off at wait {at}"
        assert not list(limiter._leases)
        if cut.waits <= at:
            break
        cancelled += isinstance(outcome, asyncio.CancelledError)
    assert outcome is None
    assert cancelled > 4
    used = await pool.fetchval("SELECT sum(tokens)::bigint FROM inflight")
    level = await pool.fetchval("SELECT level FROM limiter_state WHERE key = $1", f"tenant:{TENANT}/tokens")
    assert used > 0
    assert 0 <= level - (BURST - used) * UNITS < 10 * UNITS  # a refill of one token a minute


async def test_leases_are_the_requests_that_run(pool: asyncpg.Pool, limiter: PgLimiter, services: Services) -> None:
    dispatcher = services.dispatcher
    assert isinstance(dispatcher, ScriptedDispatcher)

    async def endless(play: Play) -> None:
        play.send(play.chunk("x"))
        await asyncio.Event().wait()

    dispatcher.script = endless
    tasks = [asyncio.create_task(request(services)) for _ in range(12)]
    async with asyncio.timeout(30):
        while await pool.fetchval("SELECT count(*) FROM inflight WHERE state = 'running'") < 12:
            await asyncio.sleep(0.01)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks[::2], return_exceptions=True)
    await limiter.drain(60)
    running = {play.job.request for play in dispatcher.plays if not play.cancelled}
    held = await pool.fetch("SELECT request_id, state FROM inflight WHERE state <> 'settled'")
    assert (
        {str(row["request_id"]) for row in held}
        == running
        == {str(lease.demand.request_id) for lease in limiter._leases}
    )
    assert {row["state"] for row in held} == {"running"}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.usefixtures("patient_limits")
async def test_the_leases_of_a_gateway_that_died_expire_and_their_places_are_free(pool: asyncpg.Pool) -> None:
    one = demand(limit("tokens", 1, burst=BURST), limit("concurrency", 2), tokens=400)
    async with PgLimiter(pool, gateway_id="gw-dead") as dead:
        assert (await dead.admit(one)).refused is None
        assert (await dead.admit(again(one))).refused is None
        dead.started(one.request_id)
        await dead._settling._write_starts()
    async with PgLimiter(pool, gateway_id="gw-alive") as alive:
        refused = await alive.admit(again(one))
        assert refused.refused_by == "concurrency"
        # Who waits as long as told finds the place free, though nobody has taken the dead rows away.
        wait_ms = refused.retry_after_ms
        assert wait_ms is not None
        move = "UPDATE inflight SET expires_at = expires_at - $1 * interval '1 millisecond'"
        await pool.execute(move, wait_ms - 7_000)
        assert (await alive.admit(again(one))).refused_by == "concurrency"
        await pool.execute(move, 7_000)
        assert (await alive.admit(again(one))).refused is None
        assert await pool.fetchval("SELECT expire_leases(10)") == 2
        await alive._upkeep()
        assert await pool.fetchval("SELECT count(*) FROM inflight WHERE expires_at > '-infinity'") == 1
        level = await pool.fetchval("SELECT level FROM limiter_state")
        assert level // UNITS == BURST - 400


async def test_only_a_crash_of_postgres_brings_rows_back_and_only_those_of_open_requests(
    pool: asyncpg.Pool, limiter: PgLimiter
) -> None:
    queued, running, done, booked = (demand(*LIMITS, limit("day_tokens", 10**6), tokens=300) for _ in range(4))
    for one in (queued, running, done, booked):
        assert (await limiter.admit(one)).refused is None
    limiter.started(running.request_id)
    await limiter.settle(done.request_id, Used(100))
    await limiter.drain(60)
    await pool.execute("DELETE FROM inflight WHERE request_id = $1", booked.request_id)
    await limiter._upkeep()
    assert await pool.fetchval("SELECT count(*) FROM inflight WHERE request_id = $1", booked.request_id) == 0
    await limiter.settle(booked.request_id, Used(1))
    await limiter.drain(60)

    await pool.execute("TRUNCATE limiter_state, inflight, limiter_epoch, gateways")  # what a crash does
    after = demand(limit("tokens", 1, burst=BURST), tokens=50)
    assert (await limiter.admit(after)).refused is None
    await limiter._upkeep()
    rows = await pool.fetch("SELECT request_id, state, tokens FROM inflight ORDER BY admitted_at")
    assert {row["request_id"]: (row["state"], row["tokens"]) for row in rows} == {
        queued.request_id: ("queued", 300),
        running.request_id: ("running", 300),
        after.request_id: ("queued", 50),
    }
    await pool.execute("DELETE FROM inflight WHERE request_id = $1", running.request_id)
    await limiter._upkeep()
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 2
    # Its bucket began full again, without what it had taken: nothing of that goes back.
    await limiter.settle(queued.request_id, Used(0))
    await limiter.drain(60)
    assert await pool.fetchval("SELECT level FROM limiter_state") // UNITS == BURST - 50


async def test_a_request_whose_bill_is_written_does_not_come_back(pool: asyncpg.Pool, limiter: PgLimiter) -> None:
    one = msgspec.structs.replace(demand(limit("concurrency", 5)), request_id=uuid7())
    assert (await limiter.admit(one)).refused is None
    await Writer(pool).write([payload(request=one.request_id)])
    await pool.execute("TRUNCATE inflight, limiter_epoch")
    await limiter._upkeep()
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 0
