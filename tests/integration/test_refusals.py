"""Whatever refuses a request leaves its limits as they were."""

from collections.abc import AsyncIterator
from time import monotonic

import asyncpg
import pytest

from gateway.admission import bucket
from gateway.admission.bucket import Claim, Level
from gateway.admission.generation import Generation
from gateway.admission.limiter import Limit, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.api.exchange import Exchange
from gateway.db import pools
from gateway.dispatch.terms import Terms
from gateway.errors import BodyTooLarge, DeadlineExceeded, GatewayError, QueueFull, RateLimited, Unavailable
from shared.ids import uuid7
from tests.demands import KEY, TENANT, demand, limit
from tests.scripted_gateway import (
    MODEL as MODEL_NAME,
)
from tests.scripted_gateway import Caller, ScriptedDispatcher, ScriptedPrincipals, scripted_services


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with pools.create(database_url, connections_max=4) as pool:
        yield pool


@pytest.fixture
async def limiter(pool: asyncpg.Pool) -> AsyncIterator[PgLimiter]:
    async with PgLimiter(pool, gateway_id="gw") as limiter:
        yield limiter


async def ask(limiter: PgLimiter, refuse: GatewayError, limits: tuple[Limit, ...]) -> None:
    """One request that the dispatcher refuses once it is admitted."""
    dispatcher = ScriptedDispatcher()
    dispatcher.refuse = refuse
    async with scripted_services(ScriptedPrincipals(), limiter, dispatcher) as services:
        admitted = await services.admission.admit(
            Caller(tenant_id=TENANT, key_id=KEY, limits=limits),
            uuid7(),
            Generation(model=MODEL_NAME, prompts=("hi",)),
            wait_s=1,
        )
        exchange = Exchange(
            admitted,
            admission=services.admission,
            dispatcher=dispatcher,
            metrics=services.metrics,
            terms=Terms(wait_s=1),
            run_s=1,
            arrived_s=monotonic(),
        )
        with pytest.raises(type(refuse)):
            async with exchange:
                raise AssertionError
    await limiter._settling.drain(60)


@pytest.mark.parametrize(
    "refuse",
    [
        QueueFull("full", retry_after_ms=1),
        Unavailable("no worker"),
        DeadlineExceeded("late"),
        BodyTooLarge("large"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_refuses_after_the_limits_have_admitted(
    pool: asyncpg.Pool, limiter: PgLimiter, refuse: GatewayError
) -> None:
    """Its requests, tokens, place and budget are back; time alone has gone on, and a bucket has filled by it."""
    limits = (
        limit("requests", 60),
        limit("tokens", 6_000, burst=9_000),
        limit("concurrency", 1),
        limit("queued_tokens", 5_000, key=KEY),
        limit("day_tokens", 5_000),
    )
    first = demand(*limits[:2], tokens=2_000)
    assert (await limiter.admit(first)).refused is None
    limiter.started(first.request_id)
    await limiter.settle(first.request_id, Used(1_500))
    await limiter._settling.drain(60)
    before = {row["key"]: row for row in await pool.fetch("SELECT * FROM limiter_state")}
    for _ in range(3):
        await ask(limiter, refuse, limits)
    for row in await pool.fetch("SELECT * FROM limiter_state"):
        rate, burst = (60, 60) if row["key"].endswith("requests") else (6_000, 9_000)
        claim = Claim(row["key"], "tokens", rate, burst, 0)
        then = before[row["key"]]
        assert row["level"] == bucket.refill(Level(then["level"], then["at_us"]), claim, row["at_us"]).units
    assert await pool.fetchval("SELECT count(*) FROM inflight WHERE state <> 'settled'") == 0
    assert await pool.fetchval("SELECT sum(tokens) FROM inflight WHERE request_id <> $1", first.request_id) == 0
    assert not list(limiter._leases)


async def test_what_a_limit_refuses_is_told_to_the_client_and_never_dispatched(limiter: PgLimiter) -> None:
    with pytest.raises(RateLimited) as refused:
        await ask(limiter, QueueFull("never reached"), (limit("tokens", 5, burst=400),))
    assert "tokens per minute. Limit 5 (burst 400), used 0, requested" in refused.value.message
