"""One bucket, three gateways, a crowd: what is admitted is what the bucket holds, to the unit, whatever the gateways'
clocks say and whoever is killed."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from gateway.admission.bucket import UNITS
from gateway.admission.limiter import Decision, Demand
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from gateway.errors import Unavailable
from tests.demands import TENANT, again, demand, limit

CROWD = 500
# A gateway in a process of its own: says `admitted` each time, and goes on until it is killed.
VICTIM = """
import asyncio, sys
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from tests.demands import demand, limit

async def main(url, per_minute, burst, tokens):
    async with pools.create(url, connections_max=4) as pool, PgLimiter(pool, gateway_id="gw-killed") as limiter:
        while True:
            await limiter.admit(demand(limit("tokens", per_minute, burst=burst), tokens=tokens))
            print("asked", flush=True)

asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:])))
"""


class JumpingClock:
    """An hour back and forth at each look."""

    def __init__(self) -> None:
        self.looks = 0

    def __call__(self) -> int:
        self.looks += 1
        return 10**12 + (-1) ** self.looks * 3_600_000_000


@contextlib.asynccontextmanager
async def gateways(url: str) -> AsyncGenerator[list[PgLimiter]]:
    async with contextlib.AsyncExitStack() as stack:
        limiters: list[PgLimiter] = []
        for number in range(3):
            pool = await stack.enter_async_context(pools.create(url, connections_max=4))
            limiter = PgLimiter(pool, gateway_id=f"gw-{number}", now_us=JumpingClock())
            limiters.append(await stack.enter_async_context(limiter))
        yield limiters


async def killed(url: str, one: Demand) -> None:
    """A gateway that has asked a few times and is gone without a word."""
    [held] = one.limits
    numbers = [str(held.allowed), str(held.burst), str(one.tokens)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, url, *numbers, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    for _ in range(3):
        assert await process.stdout.readline() == b"asked\n"
    process.send_signal(signal.SIGKILL)
    await process.wait()


async def ask(limiters: list[PgLimiter], one: Demand) -> int:
    """How many of a crowd were refused. On a slow machine some hear nothing in time; those are given back."""
    answers = await asyncio.gather(
        *(limiters[number % 3].admit(again(one)) for number in range(CROWD)), return_exceptions=True
    )
    for answer in answers:
        assert isinstance(answer, Decision | Unavailable), answer
    for limiter in limiters:
        await limiter.drain(60)
    return sum(isinstance(answer, Decision) and answer.refused is not None for answer in answers)


async def join(limiter: PgLimiter, one: Demand) -> None:
    """One admission before the crowd comes, in which a quick gateway can take all that there is."""
    while True:
        with contextlib.suppress(Unavailable):
            decision = await limiter.admit(again(one))
            assert decision.refused is None
            return


@pytest.mark.usefixtures("patient_limits")
@pytest.mark.parametrize(
    ("per_minute", "burst", "tokens"), [(600, 1_000, 33), (100_000_000, 100_000_007, 3_700_003)], ids=["small", "100M"]
)
async def test_a_crowd_gets_the_capacity_and_the_refill_and_no_token_more(
    database_url: str, per_minute: int, burst: int, tokens: int
) -> None:
    """All use what they reserve, so nothing is settled; Postgres' clock tells the first and the last admission. The
    refill of what one request takes needs seconds, so that the bucket is never full again.
    """
    one = demand(limit("tokens", per_minute, burst=burst), tokens=tokens)
    async with gateways(database_url) as limiters, contextlib.AsyncExitStack() as stack:
        sql = await asyncpg.connect(database_url)
        stack.push_async_callback(sql.close)
        # What the killed gateway holds stays held: its leases would run out on a machine that is slow enough.
        await sql.execute(
            "CREATE OR REPLACE FUNCTION expire_leases(p_rows_max integer) RETURNS integer LANGUAGE sql AS 'SELECT 0'"
        )
        for limiter in limiters:
            await join(limiter, one)
        await asyncio.gather(killed(database_url, one), ask(limiters, one))
        while not await ask(limiters, one):  # so slow that the refill outran the crowd
            pass
        assert not any(limiter.in_grace for limiter in limiters)
        rows = await sql.fetch(
            "SELECT gateway, tokens, (extract(epoch FROM admitted_at) * 1000000)::bigint AS at_us FROM inflight"
        )
        level = await sql.fetchval("SELECT level FROM limiter_state WHERE key = $1", f"tenant:{TENANT}/tokens")
    assert {row["gateway"] for row in rows} >= {"gw-0", "gw-1", "gw-2"}
    times_us = [row["at_us"] for row in rows]
    room = burst * UNITS + per_minute * (max(times_us) - min(times_us))
    admitted = sum(row["tokens"] for row in rows) * UNITS
    assert room - tokens * UNITS < admitted <= room
    assert level == room - admitted
