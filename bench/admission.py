"""Measures the time of a limiter's decision, with its limits in a real Postgres, at a steady rate of arrivals."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

import asyncpg
import msgspec

from bench.errors import BenchError
from bench.load import arrivals
from bench.percentiles import Spread, spread
from bench.tenant import Tenant
from gateway.admission.limiter import BUDGETS, CAPS, Demand, Limit, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from gateway.errors import Unavailable
from gateway.lifespan import LIMITER_CONNECTIONS_MAX
from shared import tasks
from shared.ids import uuid7

RESERVED_TOKENS, USED_TOKENS = 300, 100
WARM_DECISIONS = 20
MARGIN_S = 60.0
MODEL_ID = uuid7()
ALLOWED = 10_000_000_000  # never reached
BOOKED_S = 0.1  # how long settled rows wait for the ledger's deletion


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    took_s: Spread | None  # of decisions by Postgres, from the call
    failed: int  # not made in time, made by the local share, or a refusal
    cpu_s: float  # of this process per decision, with its start, its settlement and its part of the load


def every_limit(tenant: Tenant) -> tuple[Limit, ...]:
    """The tenant's buckets, and each cap and budget of the tenant and of the key."""
    more = (
        Limit(metric=metric, tenant_id=tenant.tenant_id, key_id=key_id, allowed=ALLOWED)
        for metric in (*CAPS, *BUDGETS)
        for key_id in (None, tenant.key_id)
    )
    return (*tenant.limits, *more)


async def decisions(
    postgres_url: str, tenant: Tenant, limits: tuple[Limit, ...], *, rate: float, duration_s: float
) -> Decisions:
    """Admit at `rate` under `limits`; start and settle every request."""
    pool = pools.create(postgres_url, connections_max=LIMITER_CONNECTIONS_MAX)
    try:
        async with (
            asyncio.timeout(duration_s + MARGIN_S),
            pool,
            _ledger(pool, tenant),
            PgLimiter(pool, gateway_id="bench") as limiter,
        ):
            for _ in range(WARM_DECISIONS):
                await _decide(limiter, tenant, limits)
            cpu_s = time.process_time()
            times = await _at_rate(limiter, tenant, limits, rate, duration_s)
            cpu_s = (time.process_time() - cpu_s) / len(times)
    except TimeoutError as error:
        raise BenchError(f"the limiter had not finished {MARGIN_S:g} s after its last decision was due") from error
    took = spread(took_s for took_s in times if took_s is not None)
    return Decisions(took_s=took, failed=times.count(None), cpu_s=cpu_s)


@contextlib.asynccontextmanager
async def _ledger(pool: asyncpg.Pool, tenant: Tenant) -> AsyncGenerator[None]:
    """Stands in for the ledger: deletes settled rows, as it does for what it has booked."""

    async def book() -> None:
        while True:
            await asyncio.sleep(BOOKED_S)
            await pool.execute("DELETE FROM inflight WHERE tenant_id = $1 AND state = 'settled'", tenant.tenant_id)

    task = asyncio.create_task(book())
    try:
        yield
    finally:
        await tasks.stop([task])


async def _at_rate(
    limiter: PgLimiter, tenant: Tenant, limits: tuple[Limit, ...], rate: float, duration_s: float
) -> list[float | None]:
    start_s = time.perf_counter()
    decided: list[asyncio.Task[float | None]] = []
    async with asyncio.TaskGroup() as group:
        for at_s in arrivals(rate, duration_s, seed=1):
            await asyncio.sleep(max(0.0, start_s + at_s - time.perf_counter()))
            decided.append(group.create_task(_decide(limiter, tenant, limits)))
    return [task.result() for task in decided]


async def _decide(limiter: PgLimiter, tenant: Tenant, limits: tuple[Limit, ...]) -> float | None:
    """The seconds that it took, or None if it failed."""
    demand = Demand(
        request_id=uuid7(),
        tenant_id=tenant.tenant_id,
        api_key_id=tenant.key_id,
        model_id=MODEL_ID,
        tokens=RESERVED_TOKENS,
        cost_micro=RESERVED_TOKENS,
        limits=limits,
    )
    start_s = time.perf_counter()
    try:
        decision = await limiter.admit(demand)
    except Unavailable:
        return None
    took_s = time.perf_counter() - start_s
    limiter.started(demand.request_id)
    await limiter.settle(demand.request_id, Used(USED_TOKENS, USED_TOKENS))
    return None if decision.refused is not None or limiter.in_grace else took_s
