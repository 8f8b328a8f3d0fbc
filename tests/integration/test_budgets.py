"""Budgets: what was spent and what is in flight, together and of one moment, at every level; money is never counted
twice and never forgotten."""

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from gateway.admission.limiter import Decision, Demand, Metric, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from gateway.errors import Unavailable
from gateway.ledger.writer import Writer
from shared.ids import uuid7
from tests.demands import KEY, MODEL, TENANT, again, demand, limit
from tests.integration.test_ledger import payload

AMOUNT = 10
SPEND = "SELECT spend($1, $2, $3, $4, $5, $6)"


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with pools.create(database_url, connections_max=4) as pool:
        yield pool


@pytest.fixture
async def limiter(pool: asyncpg.Pool, patient_limits: None) -> AsyncIterator[PgLimiter]:
    async with PgLimiter(pool, gateway_id="gw") as limiter:
        yield limiter


async def ask(limiter: PgLimiter, one: Demand) -> Decision:
    return await limiter.admit(again(one))


def of_level(metric: Metric, allowed: int, level: str) -> Demand:
    one = limit(metric, allowed, key=KEY if "key" in level else None, model=MODEL if "model" in level else None)
    return demand(one, tokens=AMOUNT, cost_micro=AMOUNT)


async def spend(pool: asyncpg.Pool, amount: int, *, occurred_at: dt.datetime | None = None) -> None:
    at = occurred_at or dt.datetime.now(dt.UTC)
    await pool.execute(SPEND, [TENANT], [KEY], [MODEL], [at], [amount], [amount])


@pytest.mark.parametrize("metric", ["day_tokens", "month_cost"])
@pytest.mark.parametrize("level", ["tenant", "key", "model", "key and model"])
async def test_what_is_spent_and_what_is_in_flight_are_one_sum(
    pool: asyncpg.Pool, limiter: PgLimiter, metric: Metric, level: str
) -> None:
    one = of_level(metric, 45, level)
    await spend(pool, 20)
    assert (await limiter.admit(one)).refused is None
    assert (await ask(limiter, one)).refused is None
    refused = await ask(limiter, one)
    assert (refused.refused_by, refused.retry_after_ms) == (metric, None)
    assert refused.refused is not None
    assert (refused.refused.used, refused.refused.remaining) == (40, 5)
    await limiter.settle(one.request_id, Used(4, 4))
    await limiter.drain(60)
    assert (await ask(limiter, one)).refused is None  # 20 spent, 4 used and not yet booked, 10 in flight
    assert (await ask(limiter, one)).refused_by == metric


@pytest.mark.parametrize("metric", ["day_tokens", "month_cost"])
async def test_yesterday_and_last_month_do_not_count(pool: asyncpg.Pool, limiter: PgLimiter, metric: Metric) -> None:
    now = dt.datetime.now(dt.UTC)
    await spend(pool, 10**9, occurred_at=now - dt.timedelta(days=32))
    assert (await limiter.admit(of_level(metric, AMOUNT, "tenant"))).refused is None
    await pool.execute("UPDATE inflight SET admitted_at = admitted_at - interval '32 days'")
    assert (await limiter.admit(of_level(metric, AMOUNT, "tenant"))).refused is None


async def test_the_ledger_spends_what_it_inserts_and_lets_go_of_the_reservation_at_once(
    pool: asyncpg.Pool, limiter: PgLimiter
) -> None:
    request = uuid7()
    one = msgspec.structs.replace(demand(limit("day_tokens", 100), tokens=60), request_id=request)
    assert (await limiter.admit(one)).refused is None
    bill = payload(request=request, tenant=str(TENANT), key=str(KEY), model=str(MODEL), prompt_tokens=30)
    writer = Writer(pool)
    for _ in range(2):
        await writer.write([bill, bill])
    spent = await pool.fetch("SELECT scope, spent FROM budget_state WHERE metric = 'day_tokens' ORDER BY scope")
    scopes = [f"key:{KEY}", f"key:{KEY}/model:{MODEL}", f"tenant:{TENANT}", f"tenant:{TENANT}/model:{MODEL}"]
    assert [tuple(row) for row in spent] == [(scope, 41) for scope in scopes]  # 30 + 11
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 0
    decision = await limiter.admit(demand(limit("day_tokens", 100), tokens=59))
    assert (decision.refused, decision.states[0].remaining) == (None, 0)


async def test_many_ledgers_spend_in_one_order(pool: asyncpg.Pool) -> None:
    """Overlapping scopes from four transactions at once: Postgres would name a deadlock."""
    tenants = [uuid.UUID(int=number) for number in range(6)]

    async def one_ledger(shift: int) -> None:
        for _ in range(10):
            some = tenants[shift:] + tenants[:shift]
            now = [dt.datetime.now(dt.UTC)] * len(some)
            await pool.execute(SPEND, some, [KEY] * 6, [MODEL] * 6, now, [1] * 6, [2] * 6)

    await asyncio.gather(*(one_ledger(shift) for shift in range(4)))
    tenant_scope = await pool.fetch(
        "SELECT spent FROM budget_state WHERE scope = $1 ORDER BY metric", f"tenant:{TENANT}"
    )
    assert [row["spent"] for row in tenant_scope] == [40, 80]


async def test_no_amount_stops_the_ledger(pool: asyncpg.Pool) -> None:
    for _ in range(20):
        await spend(pool, 2**62)
    assert await pool.fetchval("SELECT max(spent) FROM budget_state") == 10**18


async def test_what_is_given_back_goes_below_nothing_nowhere(pool: asyncpg.Pool) -> None:
    """In one call with amounts that are added, too, and where nothing was spent before."""
    now = dt.datetime.now(dt.UTC)
    other = uuid.UUID(int=9)
    for costs, spent in (([5, -3], [5, 0]), ([-2, 4], [3, 4]), ([-9, -1], [0, 3]), ([2**62, -(2**62)], [10**18, 0])):
        await pool.execute(SPEND, [TENANT, other], [KEY, other], [MODEL, other], [now, now], [0, 0], costs)
        found = await pool.fetch(
            "SELECT spent FROM budget_state WHERE scope = ANY($1) ORDER BY scope",
            [f"tenant:{TENANT}", f"tenant:{other}"],
        )
        assert [row["spent"] for row in found] == spent


async def test_sums_of_old_periods_are_pruned(pool: asyncpg.Pool) -> None:
    now = dt.datetime.now(dt.UTC)
    for days in (0, 200):
        await spend(pool, 1, occurred_at=now - dt.timedelta(days=days))
    await pool.execute("SELECT prune_budget_state()")
    assert await pool.fetchval("SELECT count(*) FROM budget_state") == 8


async def test_without_postgres_budgets_are_trusted_for_a_while_and_then_closed(pool: asyncpg.Pool) -> None:
    """No tenant without a budget is hurt by another's."""
    now_us = 0
    limiter = PgLimiter(pool, gateway_id="gw", budget_grace_s=60, now_us=lambda: now_us)
    budget, none = limit("month_cost", 10**6), limit("month_cost", None)
    limiter._lost(OSError())
    assert (await limiter.admit(demand(budget))).refused is None
    now_us = 60_000_000
    assert (await limiter.admit(demand(budget))).refused is None
    now_us += 1
    for closed in (budget, limit("day_tokens", 10**6, key=KEY)):
        with pytest.raises(Unavailable):
            await limiter.admit(demand(closed))
    assert (await limiter.admit(demand(none, limit("month_cost", 1, enforced=False)))).refused is None
    assert (await limiter.admit(demand(limit("month_cost", 0)))).refused_by == "month_cost"
