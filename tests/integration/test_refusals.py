"""A refusal of any kind leaves every bucket, lease and budget as it was."""

import datetime as dt
import itertools
import random
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any

import asyncpg
import msgspec
import pytest

from gateway.admission import bucket
from gateway.admission.bucket import Claim, Level
from gateway.admission.generation import Generation
from gateway.admission.limiter import BUCKETS, RESERVED, Demand, Limit, Metric, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.api.exchange import Exchange
from gateway.db import pools
from gateway.dispatch.terms import Terms
from gateway.errors import (
    BodyTooLarge,
    ContextTooLong,
    DeadlineExceeded,
    GatewayError,
    InvalidRequest,
    ModelNotFound,
    QueueFull,
    RateLimited,
    Unavailable,
)
from shared import wire
from shared.ids import uuid7
from shared.trace import Off
from tests.demands import KEY, MODEL, TENANT, again, demand, limit
from tests.scripted_gateway import (
    MODEL as MODEL_NAME,
)
from tests.scripted_gateway import Caller, ScriptedDispatcher, ScriptedPrincipals, scripted_services
from tests.tiny_model import CONTEXT

OTHER = uuid.UUID(int=8)
LEVELS = tuple(itertools.product((None, KEY), (None, MODEL)))  # the tenant's, the key's, for all models and for one
BURSTS: dict[Metric, int] = {"requests": 3, "tokens": 7_000}
TABLES = {"limiter_state": "key", "inflight": "request_id", "budget_state": "scope, metric, period_start"}
ANYHOW, UNTIL_REFUSED = 8, 8  # demands of one round
TOKENS = 2_500  # UNTIL_REFUSED times that is more than any limit of tokens or money allows


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with pools.create(database_url, connections_max=4) as pool:
        yield pool


@pytest.fixture
async def limiter(pool: asyncpg.Pool) -> AsyncIterator[PgLimiter]:
    async with PgLimiter(pool, gateway_id="gw") as limiter:
        yield limiter


async def everything(pool: asyncpg.Pool) -> dict[str, list[tuple[object, ...]]]:
    """All rows, but those of full buckets: none is as good."""
    found = {
        table: [tuple(row) for row in await pool.fetch(f"SELECT * FROM {table} ORDER BY {key}")]
        for table, key in TABLES.items()
    }
    found["limiter_state"] = [
        (key, level, at_us)
        for key, level, at_us in found["limiter_state"]
        if level != BURSTS[str(key).rpartition("/")[2]] * bucket.UNITS
    ]
    return found


def some_limit(random_: random.Random, metric: Metric, key: uuid.UUID | None, model: uuid.UUID | None) -> Limit:
    """Tight enough to refuse one of a few demands; four of five are enforced."""
    unit = 1_000 if metric in {"queued_tokens", "day_tokens", "month_cost"} else 1
    allowed = random_.choice([1, 7]) if metric in BUCKETS else random_.randint(1, 6) * unit
    enforced = random_.random() < 0.8
    return limit(metric, allowed, burst=BURSTS.get(metric), key=key, model=model, enforced=enforced)


def some_demand(random_: random.Random, limits: list[Limit]) -> Demand:
    """Of one of two keys, for one of two models; now and then one of its limits is zero."""
    key, model = random_.choice([KEY, OTHER]), random_.choice([MODEL, OTHER])
    held = [one for one in limits if one.concerns(model) and one.key_id in {None, key}]
    if held and random_.random() < 0.15:
        held[0] = msgspec.structs.replace(held[0], allowed=0)
    tokens = random_.choice([1, 900, TOKENS, 8_000])
    return demand(*held, tokens=tokens, cost_micro=tokens, key=key, model=model)


async def go_on(pool: asyncpg.Pool, random_: random.Random, request_id: uuid.UUID) -> None:
    """What has become of an admitted request: it waits, it runs, or it is over."""
    if (what := random_.random()) < 0.4:
        await pool.execute("SELECT started($1)", [request_id])
    if what < 0.2:
        used = random_.choice([0, 500])
        await pool.execute("SELECT settle($1, $2, $2)", [request_id], [used])


class Trial:
    """Demands, one after the other, and what every refusal has left."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._limiter = PgLimiter(pool, gateway_id="gw")  # not entered: a renewal would be a change too
        self.outcomes = Counter[str]()

    async def refused_by(self, one: Demand) -> Metric | None:
        before, leases = await everything(self._pool), list(self._limiter._leases)
        decision = await self._limiter.admit(one)
        if decision.refused is None:
            self.outcomes["admitted"] += 1
            return None
        assert await everything(self._pool) == before
        assert list(self._limiter._leases) == leases
        assert not len(self._limiter._settling)
        self.outcomes["zero" if decision.refused.limit == 0 else decision.refused.metric] += 1
        return decision.refused.metric


async def test_whatever_limit_refuses(pool: asyncpg.Pool) -> None:
    """Each metric at each level, beside others of any level; zero and shadow mode among them."""
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"{seed = }")  # pytest shows it when the test fails
    random_ = random.Random(seed)
    trial, every = Trial(pool), [*itertools.product(RESERVED, LEVELS)]
    for metric, level in every:
        await pool.execute("TRUNCATE limiter_state, inflight, budget_state")
        spent, at = [random_.randint(0, 900)], [dt.datetime.now(dt.UTC)]
        await pool.execute("SELECT spend($1, $2, $3, $4, $5, $5)", [TENANT], [KEY], [MODEL], at, spent)
        aimed = msgspec.structs.replace(some_limit(random_, metric, *level), enforced=True)
        beside = [one for one in random_.sample(every, random_.randint(1, 8)) if one != (metric, level)]
        others = [some_limit(random_, other, *others_level) for other, others_level in beside]
        for _ in range(ANYHOW):
            one = some_demand(random_, [aimed, *others])
            if await trial.refused_by(one) is None:
                await go_on(pool, random_, one.request_id)
        shadows = [msgspec.structs.replace(other, enforced=False) for other in others]
        last = demand(aimed, *shadows, tokens=TOKENS, cost_micro=TOKENS)
        assert metric in [await trial.refused_by(again(last)) for _ in range(UNTIL_REFUSED)]
    assert set(trial.outcomes) == {"admitted", "zero", *RESERVED}


@pytest.mark.parametrize(
    ("wanted", "refusal"),
    [
        ({"model": "absent"}, ModelNotFound),
        ({"prompts": ("long" * CONTEXT,)}, ContextTooLong),
        ({"logit_bias": ((10**6, 1.0),)}, InvalidRequest),
        ({"max_tokens": 1, "min_tokens": 2}, InvalidRequest),
        ({}, Unavailable),
        ({}, QueueFull),
    ],
    ids=["model", "context", "token", "length", "no worker", "load"],
)
async def test_what_refuses_before_the_limits_never_asks_them(
    pool: asyncpg.Pool, wanted: dict[str, Any], refusal: type[GatewayError]
) -> None:
    limiter, dispatcher = PgLimiter(pool, gateway_id="gw"), ScriptedDispatcher()
    if refusal is Unavailable:
        dispatcher.fleet.ready.clear()
    elif refusal is QueueFull:
        dispatcher.overloaded = QueueFull("full")

    def check(job: wire.Job, pool: str) -> None:
        dispatcher.check_load(job, pool, Terms(wait_s=1))

    generation = Generation(**({"model": MODEL_NAME, "prompts": ("hi",)} | wanted))
    caller = Caller(tenant_id=TENANT, key_id=KEY, limits=(limit("tokens", 1, burst=7_000), limit("concurrency", 9)))
    before = await everything(pool)
    async with scripted_services(ScriptedPrincipals(), limiter, dispatcher) as services:
        with pytest.raises(refusal):
            await services.admission.admit(caller, uuid7(), generation, wait_s=1, trace=Off().begin(None), check=check)
    assert await everything(pool) == before
    assert not list(limiter._leases)
    assert not len(limiter._settling)


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
            trace=Off().begin(None),
            check=lambda *_: None,
        )
        exchange = Exchange(
            admitted,
            admission=services.admission,
            dispatcher=dispatcher,
            metrics=services.metrics,
            arrived_s=monotonic(),
        )
        with pytest.raises(type(refuse)):
            await exchange.open(Terms(wait_s=1), 1)
        await exchange.close()
    await limiter.drain(60)


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
    await limiter.drain(60)
    before = {row["key"]: row for row in await pool.fetch("SELECT * FROM limiter_state")}
    for _ in range(3):
        await ask(limiter, refuse, limits)
    for row in await pool.fetch("SELECT * FROM limiter_state"):
        rate, burst = (60, 60) if row["key"].endswith("requests") else (6_000, 9_000)
        claim = Claim(row["key"], "tokens", rate, burst, 0)
        then = before[row["key"]]
        assert row["level"] == bucket.refill(Level(then["level"], then["at_us"]), claim, row["at_us"]).units
    assert await pool.fetchval("SELECT count(*) FROM inflight WHERE state <> 'settled'") == 0
    assert await pool.fetchval("SELECT count(*) FROM inflight WHERE request_id <> $1", first.request_id) == 0
    assert not list(limiter._leases)


async def test_what_a_limit_refuses_is_told_to_the_client_and_never_dispatched(limiter: PgLimiter) -> None:
    with pytest.raises(RateLimited) as refused:
        await ask(limiter, QueueFull("never reached"), (limit("tokens", 5, burst=400),))
    assert "tokens per minute. Limit 5 (burst 400), used 0, requested" in refused.value.message
