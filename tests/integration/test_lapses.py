"""Leases that run out under requests that still run: buckets end at what was really used and caps count what is
renewed, in whatever order expiry, renewal, settlement and bill come."""

import asyncio
import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg
import pytest

from gateway.ledger.writer import Writer
from shared.ids import uuid7
from tests.demands import KEY, MODEL
from tests.integration.test_ledger import payload

RESERVED, USED, BURST = 400, 300, 1_000
ADMIT = (
    "SELECT (admit(r.request, r.tenant, $3, $4, 'gw', 3600000, $5, 0, ARRAY['tenant:' || r.tenant || '/requests',"
    " 'tenant:' || r.tenant || '/tokens'], ARRAY[1, 1]::bigint[], ARRAY[$6, $6]::bigint[], ARRAY[1, $5]::bigint[],"
    " ARRAY[true, true], '{}', '{}', '{}', '{}', '{}', '{}')).refused"
    " FROM unnest($1::uuid[], $2::uuid[]) AS r (request, tenant)"
)
RUN_OUT = (
    "UPDATE inflight SET expires_at = lease_now() - interval '1 second'"
    " WHERE request_id = ANY($1) AND state <> 'settled' AND expires_at > '-infinity'"
)
LACKS = "SELECT key, $1 - level / 60000000 AS lacks FROM limiter_state"


@dataclass
class Story:
    """One request, and what becomes of it. `steps` are applied in their order; the fields say what must be seen."""

    steps: Sequence[str]
    used: int
    request: uuid.UUID = field(default_factory=uuid7)
    tenant: uuid.UUID = field(default_factory=uuid.uuid4)
    running: bool = False
    closed: bool = False
    lapsed: bool = False
    lacks_tokens: int = RESERVED
    lacks_requests: int = 1

    def take(self, step: str) -> None:
        if self.closed:
            return
        if step == "start":
            self.running = True
        elif step == "renew":
            self.lapsed = False
        elif step == "expire":
            if not self.lapsed and not self.running:
                self.lacks_requests = 0
            self.lapsed, self.lacks_tokens = True, 0
        else:
            self.closed, self.lapsed, self.lacks_tokens = True, False, self.used
            self.lacks_requests = int(self.running or self.used > 0)


async def apply(pool: asyncpg.Pool, step: str, stories: list[Story]) -> None:
    """One step of all these stories."""
    requests = [story.request for story in stories]
    if step == "start":
        await pool.execute("SELECT started($1)", requests)
    elif step == "renew":
        await pool.execute("SELECT renew('gw', $1, 3600000)", requests)
    elif step == "expire":
        await pool.execute(RUN_OUT, requests)
        await pool.execute("SELECT expire_leases(10000)")
    elif step == "settle":
        used = [story.used for story in stories]
        await pool.execute("SELECT settle($1, $2, $3)", requests, used, [0] * len(used))
    else:
        await Writer(pool).write([bill(story.request, story.used) for story in stories])


def bill(request: uuid.UUID, used: int, *, final: bool = True) -> bytes:
    return payload(request=request, prompt_tokens=0, cached_tokens=0, completion_tokens=used, final=final)


async def check(pool: asyncpg.Pool, stories: list[Story]) -> None:
    lacks = {row["key"]: row["lacks"] for row in await pool.fetch(LACKS, BURST)}
    counted = "SELECT request_id FROM inflight WHERE state <> 'settled' AND expires_at > lease_now()"
    counts = {row["request_id"] for row in await pool.fetch(counted)}
    for story in stories:
        seen = tuple(lacks[f"tenant:{story.tenant}/{metric}"] for metric in ("tokens", "requests"))
        assert seen == (story.lacks_tokens, story.lacks_requests), story
        assert (story.request in counts) == (not story.closed and not story.lapsed), story


async def test_in_whatever_order_leases_run_out_and_come_back_and_are_closed_buckets_lack_what_was_used(
    pool: asyncpg.Pool,
) -> None:
    """Every order of four steps out of five, twice, for a request that uses something and for one that does not."""
    steps = ("start", "expire", "renew", "settle", "bill")
    stories = [Story(order, used) for order in itertools.product(steps, repeat=4) for used in (USED, 0)]
    requests, tenants = [story.request for story in stories], [story.tenant for story in stories]
    await pool.execute(ADMIT, requests, tenants, KEY, MODEL, RESERVED, BURST)
    for number in range(4):
        for step in steps:
            concerned = [story for story in stories if story.steps[number] == step]
            await apply(pool, step, concerned)
            for story in concerned:
                story.take(step)
        await check(pool, stories)
    for step in ("settle", "bill", "settle", "expire", "renew"):
        await apply(pool, step, stories)
        for story in stories:
            story.take(step)
    await check(pool, stories)
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 0


RACERS = {
    "expire": "SELECT expire_leases(10), $1::uuid, $2::bigint, $3::timestamptz",
    "renew": "SELECT renew('gw', ARRAY[$1::uuid], 3600000), $2::bigint, $3::timestamptz",
    "settle": "SELECT settle(ARRAY[$1::uuid], ARRAY[$2::bigint], ARRAY[0::bigint]), $3::timestamptz",
    "bill": "SELECT close_reservations(ARRAY[$1::uuid], ARRAY[$3::timestamptz]), $2::bigint",
}


async def until_done_or_held_up(pool: asyncpg.Pool, task: asyncio.Task[str], pid: int) -> None:
    waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1"
    async with asyncio.timeout(30):
        while not task.done() and not await pool.fetchval(waits, pid):
            await asyncio.sleep(0.002)


async def race(pool: asyncpg.Pool, first: str, second: str, story: Story) -> None:
    """`second` begins when `first` has done its work and not committed yet."""
    occurred = await pool.fetchval("SELECT occurred_at FROM usage_events WHERE request_id = $1", story.request)
    arguments = (story.request, story.used, occurred)
    async with pool.acquire() as one, pool.acquire() as other:
        transaction = one.transaction()
        await transaction.start()
        await one.execute(RACERS[first], *arguments)
        task = asyncio.create_task(other.execute(RACERS[second], *arguments))
        await until_done_or_held_up(pool, task, other.get_server_pid())
        await transaction.commit()
        await task


@pytest.mark.parametrize("lapsed", [False, True], ids=["has run out", "has lapsed"])
async def test_two_at_once_give_back_and_charge_once(pool: asyncpg.Pool, lapsed: bool) -> None:
    for first, second in itertools.product(RACERS, repeat=2):
        story = Story((first, second), USED)
        await pool.execute(ADMIT, [story.request], [story.tenant], KEY, MODEL, RESERVED, BURST)
        await apply(pool, "start", [story])
        await Writer(pool).write([bill(story.request, story.used, final=False)])
        await pool.execute(RUN_OUT, [story.request])
        if lapsed:
            await pool.execute("SELECT expire_leases(10)")
        await race(pool, first, second, story)
        for step in ("renew", "settle", "bill"):
            await apply(pool, step, [story])
            story.take(step)
        await check(pool, [story])
        assert await pool.fetchval("SELECT count(*) FROM inflight") == 0


async def test_a_lapsed_row_that_nobody_closes_goes_and_changes_nothing(pool: asyncpg.Pool) -> None:
    story = Story((), USED)
    await pool.execute(ADMIT, [story.request], [story.tenant], KEY, MODEL, RESERVED, BURST)
    for step in ("expire", "expire"):
        await apply(pool, step, [story])
        story.take(step)
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 1
    await pool.execute("UPDATE inflight SET admitted_at = now() - interval '121 minutes'")
    await apply(pool, "expire", [story])
    await check(pool, [story])
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 0
