"""How long a limiter's decision takes, with its buckets in a real Postgres, at a steady rate of arrivals."""

import asyncio
import time

import msgspec

from bench.errors import BenchError
from bench.load import arrivals
from bench.percentiles import Spread, spread
from bench.tenant import Tenant
from gateway.admission.limiter import Demand, Used
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from gateway.errors import Unavailable
from gateway.lifespan import LIMITER_CONNECTIONS_MAX
from shared.ids import uuid7

RESERVED_TOKENS, USED_TOKENS = 300, 100
WARM_DECISIONS = 20
MARGIN_S = 60.0
MODEL_ID = uuid7()


class Decisions(msgspec.Struct, frozen=True, kw_only=True):
    took_s: Spread | None  # of those that Postgres made, from the call
    failed: int  # not made in time, or made by the local share, or a refusal


async def decisions(postgres_url: str, tenant: Tenant, *, rate: float, duration_s: float) -> Decisions:
    """Admit at `rate`, one bucket of requests and one of tokens each time, and settle every one."""
    pool = pools.create(postgres_url, connections_max=LIMITER_CONNECTIONS_MAX)
    try:
        async with asyncio.timeout(duration_s + MARGIN_S), pool, PgLimiter(pool, gateway_id="bench") as limiter:
            for _ in range(WARM_DECISIONS):
                await _decide(limiter, tenant)
            times = await _at_rate(limiter, tenant, rate, duration_s)
    except TimeoutError as error:
        raise BenchError(f"the limiter had not finished {MARGIN_S:g} s after its last decision was due") from error
    return Decisions(took_s=spread(took_s for took_s in times if took_s is not None), failed=times.count(None))


async def _at_rate(limiter: PgLimiter, tenant: Tenant, rate: float, duration_s: float) -> list[float | None]:
    start_s = time.perf_counter()
    tasks: list[asyncio.Task[float | None]] = []
    async with asyncio.TaskGroup() as group:
        for at_s in arrivals(rate, duration_s, seed=1):
            await asyncio.sleep(max(0.0, start_s + at_s - time.perf_counter()))
            tasks.append(group.create_task(_decide(limiter, tenant)))
    return [task.result() for task in tasks]


async def _decide(limiter: PgLimiter, tenant: Tenant) -> float | None:
    """Seconds, or None for one that failed."""
    demand = Demand(
        request_id=uuid7(),
        tenant_id=tenant.tenant_id,
        api_key_id=tenant.key_id,
        model_id=MODEL_ID,
        tokens=RESERVED_TOKENS,
        limits=tenant.limits,
    )
    start_s = time.perf_counter()
    try:
        decision = await limiter.admit(demand)
    except Unavailable:
        return None
    took_s = time.perf_counter() - start_s
    limiter.started(demand.request_id)
    await limiter.settle(demand.request_id, Used(USED_TOKENS))
    return None if decision.refused is not None or limiter.in_grace else took_s
