"""The limiter in Postgres: the same decisions as the pure core, exact under concurrency, refunded once."""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.admission import bucket, claims, settling
from gateway.admission.bucket import UNITS, Claim, Level
from gateway.admission.leases import LEASE_MS
from gateway.admission.limiter import Demand, Limit, Used
from gateway.admission.local_limiter import LocalLimiter
from gateway.admission.pg_limiter import _ADMIT, PgLimiter
from gateway.admission.prepared import Prepared
from gateway.db import pools
from gateway.errors import Unavailable
from tests.demands import KEY, TENANT, demand, limit

SETTLE = "SELECT settle($1, $2, $3)"
TOKENS, REQUESTS = f"tenant:{TENANT}/tokens", f"tenant:{TENANT}/requests"


@pytest.fixture
async def other(database_url: str, patient_limits: None) -> AsyncIterator[PgLimiter]:
    """Another gateway's."""
    async with pools.create(database_url, connections_max=8) as pool, PgLimiter(pool, gateway_id="gw-b") as limiter:
        yield limiter


def asked(tokens: int = 10, *, tpm: int | None = 100, rpm: int | None = None, burst: int | None = None) -> Demand:
    return demand(limit("tokens", tpm, burst=burst), limit("requests", rpm), tokens=tokens)


async def settle(limiter: PgLimiter | LocalLimiter, request_id: uuid.UUID, tokens_used: int) -> None:
    """Settled also where Postgres took longer than an answer waits for it."""
    await limiter.settle(request_id, Used(tokens_used))
    if isinstance(limiter, PgLimiter):
        await limiter.drain(60)


async def units(pool: asyncpg.Pool, key: str) -> int:
    return await pool.fetchval("SELECT level FROM limiter_state WHERE key = $1", key)


async def test_a_row_that_somebody_holds_holds_up_its_own_tenants_settlements_alone(
    pool: asyncpg.Pool, limiter: PgLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a forgotten transaction of an operator does: the others would go without what they had to get back."""
    monkeypatch.setattr(settling, "TIMEOUT_S", 0.5)
    monkeypatch.setattr(settling, "HELD_UP_RETRY_S", 0.2)
    held, beside, later = tenants = [uuid.UUID(int=number) for number in (11, 12, 13)]
    asked_by = {tenant: demand(limit("tokens", 100, tenant=tenant), tenant=tenant) for tenant in tenants}

    async def settled(*tenants: uuid.UUID) -> None:
        await asyncio.gather(*(limiter.settle(asked_by[tenant].request_id, Used(1)) for tenant in tenants))

    async def until_settled(tenant: uuid.UUID) -> None:
        state = "SELECT state FROM inflight WHERE request_id = $1"
        async with asyncio.timeout(60):
            while await pool.fetchval(state, asked_by[tenant].request_id) != "settled":
                await asyncio.sleep(0.02)

    for one in asked_by.values():
        assert (await limiter.admit(one)).refused_by is None
    async with pool.acquire() as operator:
        forgotten = operator.transaction()
        await forgotten.start()
        await operator.execute("SELECT FROM limiter_state WHERE key LIKE $1 FOR UPDATE", f"%{held}%")
        await settled(held, beside)  # in one batch
        await until_settled(beside)
        await settled(later)
        await until_settled(later)
        await forgotten.rollback()
    await until_settled(held)


async def test_the_sql_and_the_core_take_one_history_to_the_same_levels(pool: asyncpg.Pool) -> None:
    """`admit` is run at the database's own clock; the core is given the times that it wrote down."""
    random_ = random.Random(20)
    limits = [
        limit("requests", 97),
        limit("tokens", 5_000_011, burst=70_001),
        limit("tokens", 3_000_017, burst=90_001, key=KEY),
    ]
    levels: dict[str, Level] = {}
    open_requests: list[tuple[Demand, tuple[Claim, ...], bool]] = []
    outcomes = set[bool]()
    for _ in range(300):
        if open_requests and random_.random() < 0.4:
            one, taken, started = open_requests.pop(random_.randrange(len(open_requests)))
            used = random_.choice([0, random_.randrange(one.tokens + 5)])
            assert await pool.fetchval(SETTLE, [one.request_id], [used], [0]) == 1
            assert await pool.fetchval(SETTLE, [one.request_id], [0], [0]) == 0
            for claim in taken:
                unused = bucket.unused(claim, used, started=started)
                levels[claim.key] = bucket.refund(levels[claim.key], claim, unused)
        else:
            one = demand(*limits[: random_.randint(1, 3)], tokens=random_.randrange(1, 60_000))
            wanted = claims.of(one)
            buckets = wanted.buckets
            row = await admit(pool, one)
            at_us = await pool.fetch(
                "SELECT key, at_us FROM limiter_state WHERE key = ANY($1) ORDER BY key",
                [claim.key for claim in buckets],
            )
            for claim in buckets:
                levels.setdefault(claim.key, Level(claim.burst * UNITS, 0))
            if row["refused"] is None:
                now_us = max(record["at_us"] for record in at_us)
                before = [levels[claim.key] for claim in buckets]
                verdict = claims.decide(wanted, before, (), now_us, leases_us=0)
                assert verdict.refused is None
                assert [level.units for level in verdict.levels] == row["levels"]
                levels |= {claim.key: level for claim, level in zip(buckets, verdict.levels, strict=True)}
                if started := random_.random() < 0.5:
                    assert await pool.fetchval("SELECT started($1)", [one.request_id]) == 1
                open_requests.append((one, buckets, started))
            else:
                refusing, level = buckets[row["refused"] - 1], Level(row["levels"][row["refused"] - 1], 0)
                assert row["retry_after_us"] == bucket.wait_us(level, refusing)
            outcomes.add(row["refused"] is None)
        stored = {record["key"]: record["level"] for record in await pool.fetch("SELECT key, level FROM limiter_state")}
        assert stored == {key: level.units for key, level in levels.items()}
    assert outcomes == {True, False}


async def admit(pool: asyncpg.Pool, one: Demand) -> asyncpg.Record:
    return await pool.fetchrow(_ADMIT, *Prepared.of(one).arguments(one, "gw", LEASE_MS))


@pytest.mark.parametrize(
    ("level", "age_us", "per_minute", "burst"),
    [
        (0, 1, 7, 100),
        (0, 10**16, bucket.LIMIT_MAX, bucket.LIMIT_MAX),
        (-bucket.LIMIT_MAX * UNITS, 10**16, bucket.LIMIT_MAX, bucket.LIMIT_MAX),
        (-bucket.LIMIT_MAX * UNITS, 5, 1, bucket.LIMIT_MAX),
        (50 * UNITS, 10**9, 1, 10),
        (3, -(10**9), 60, 10),
    ],
)
async def test_refill_agrees_at_the_edges(
    pool: asyncpg.Pool, level: int, age_us: int, per_minute: int, burst: int
) -> None:
    now_us = 10**17
    found = await pool.fetchval(
        "SELECT bucket_level($1, $2, $3, $4, $5)", level, now_us - age_us, now_us, per_minute, burst
    )
    claim = Claim("k", "tokens", per_minute, burst, 1)
    assert found == bucket.refill(Level(level, now_us - age_us), claim, now_us).units


async def test_refill_agrees_on_anything(pool: asyncpg.Pool) -> None:
    random_ = random.Random(8)
    claims_ = [
        Claim("k", "tokens", random_.choice([1, 7, 997, 10**8, bucket.LIMIT_MAX]), random_.randint(1, 10**10), 1)
        for _ in range(5_000)
    ]
    levels = [Level(random_.randint(-claim.burst, claim.burst) * UNITS, 10**15) for claim in claims_]
    times = [10**15 + random_.choice([-1, 0, 1, 10**3, 10**7, 10**13]) * random_.randint(1, 99) for _ in claims_]
    rows = await pool.fetch(
        "SELECT bucket_level(l, a, n, p, b)"
        " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])"
        " WITH ORDINALITY AS x (l, a, n, p, b, place) ORDER BY place",
        [level.units for level in levels],
        [level.at_us for level in levels],
        times,
        [claim.per_minute for claim in claims_],
        [claim.burst for claim in claims_],
    )
    expected = [bucket.refill(*each).units for each in zip(levels, claims_, times, strict=True)]
    assert [row[0] for row in rows] == expected


async def test_requests_sent_together_through_two_gateways_cannot_outrun_a_limit(
    limiter: PgLimiter, other: PgLimiter
) -> None:
    demands = [asked(80) for _ in range(20)]
    decisions = await asyncio.gather(*((limiter, other)[index % 2].admit(one) for index, one in enumerate(demands)))
    admitted = [index for index, decision in enumerate(decisions) if decision.refused_by is None]
    assert len(admitted) == 1
    assert all(decision.retry_after_ms for decision in decisions if decision.refused_by)
    winner = demands[admitted[0]]
    await settle((limiter, other)[admitted[0] % 2], winner.request_id, 25)
    assert (await other.admit(asked(70))).refused_by is None


async def test_many_small_requests_through_two_gateways_take_exactly_the_burst(
    limiter: PgLimiter, other: PgLimiter
) -> None:
    began = time.monotonic()
    decisions = await asyncio.gather(
        *((limiter, other)[index % 2].admit(asked(7, tpm=700, rpm=1_000)) for index in range(300))
    )
    admitted = sum(decision.refused_by is None for decision in decisions)
    most = 700 + 700 * (time.monotonic() - began) / 60
    assert 700 <= 7 * admitted <= most


@pytest.mark.usefixtures("patient_limits")
async def test_behind_a_pooler_no_statement_is_prepared_by_name(database_url: str) -> None:
    async with pools.create(database_url, connections_max=3, pooler=True) as pool:
        async with PgLimiter(pool, gateway_id="gw") as limiter:
            one = asked(90)
            assert (await limiter.admit(one)).refused_by is None
            await settle(limiter, one.request_id, 0)
        assert await pool.fetchval("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''") == 0


async def test_an_abandoned_lease_is_refunded_once_and_not_again_by_a_late_settlement(pool: asyncpg.Pool) -> None:
    abandoned, kept = asked(90, tpm=1, burst=1_000), asked(500, tpm=1, burst=1_000)
    for one in (abandoned, kept):
        await admit(pool, one)
    expire = "UPDATE inflight SET expires_at = now() - interval '1 second' WHERE request_id = $1"
    await pool.execute(expire, abandoned.request_id)
    assert await pool.fetchval("SELECT expire_leases(10)") == 1
    assert await pool.fetchval("SELECT expire_leases(10)") == 0
    assert await units(pool, TOKENS) // UNITS == 500
    assert await pool.fetchval(SETTLE, [abandoned.request_id], [0], [0]) == 1
    assert await pool.fetchval(SETTLE, [abandoned.request_id], [0], [0]) == 0
    assert await units(pool, TOKENS) // UNITS == 500
    assert await pool.fetchval("SELECT request_id FROM inflight") == kept.request_id


async def test_a_settled_reservation_that_no_bill_closes_goes_without_a_refund(pool: asyncpg.Pool) -> None:
    one = asked(90, tpm=1, burst=1_000)
    await admit(pool, one)
    await pool.execute(SETTLE, [one.request_id], [40], [0])
    await pool.execute("UPDATE inflight SET expires_at = now() - interval '1 second'")
    assert await pool.fetchval("SELECT expire_leases(10)") == 0
    assert await units(pool, TOKENS) // UNITS == 960
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 0


async def test_what_came_to_nothing_leaves_nothing_and_what_was_started_waits_for_its_bill(pool: asyncpg.Pool) -> None:
    limits = limit("tokens", 1, burst=1_000), limit("requests", 1, burst=10)  # a refill takes a minute
    refused, started, used = (demand(*limits, tokens=40) for _ in range(3))
    for one in (refused, started, used):
        await admit(pool, one)
    await pool.execute("SELECT started($1)", [started.request_id])
    ids = [one.request_id for one in (refused, started, used)]
    assert await pool.fetchval(SETTLE, ids, [0, 0, 7], [0, 0, 0]) == 3
    assert await pool.fetchval(SETTLE, ids, [0, 0, 0], [0, 0, 0]) == 0
    left = await pool.fetch("SELECT request_id, tokens FROM inflight WHERE state = 'settled' ORDER BY tokens")
    assert [tuple(row) for row in left] == [(started.request_id, 0), (used.request_id, 7)]
    assert await pool.fetchval("SELECT count(*) FROM inflight") == 2
    assert await units(pool, REQUESTS) // UNITS == 8
    assert await units(pool, TOKENS) // UNITS == 993


async def test_renewal_extends_open_leases_only_and_brings_none_back(pool: asyncpg.Pool) -> None:
    kept, settled, gone = asked(1), asked(1), asked(1)
    for one in (kept, settled, gone):
        await admit(pool, one)
    await pool.execute(SETTLE, [settled.request_id], [1], [0])
    await pool.execute("DELETE FROM inflight WHERE request_id = $1", gone.request_id)
    await pool.execute("UPDATE inflight SET expires_at = now()")
    ids = [kept.request_id, settled.request_id, gone.request_id]
    await pool.fetchval("SELECT renew('gw-a', $1, 3600000)", ids)
    alive = await pool.fetch("SELECT request_id FROM inflight WHERE expires_at > now()")
    assert [record["request_id"] for record in alive] == [kept.request_id]


async def test_a_gateway_renews_its_open_leases(pool: asyncpg.Pool, limiter: PgLimiter) -> None:
    one = asked(1)
    await limiter.admit(one)
    await pool.execute("UPDATE inflight SET expires_at = now() + interval '1 second'")
    limiter._upkeep_due.set()
    async with asyncio.timeout(60):
        while not await pool.fetchval("SELECT expires_at > now() + interval '5 seconds' FROM inflight"):
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("limiter", "other")
async def test_live_gateways_are_counted(pool: asyncpg.Pool) -> None:
    while await pool.fetchval("SELECT count(*) FROM gateways") < 2:
        await asyncio.sleep(0.01)
    await pool.execute("INSERT INTO gateways VALUES ('gw-dead', now() - interval '1 second')")
    assert await pool.fetchval("SELECT gateways FROM renew('gw-a', '{}', 15000)") == 2


async def test_a_request_of_unlimited_buckets_is_reserved_and_settled_too(
    pool: asyncpg.Pool, limiter: PgLimiter
) -> None:
    one = asked(5, tpm=None)
    await limiter.admit(one)
    assert await pool.fetchval("SELECT state FROM inflight") == "queued"
    await settle(limiter, one.request_id, 5)
    assert await pool.fetchval("SELECT state FROM inflight") == "settled"


async def test_debts_of_an_outage_are_charged_and_bounded(pool: asyncpg.Pool) -> None:
    charge = "SELECT debit_buckets($1, $2, $3, $4)"
    await pool.execute(charge, ["a/tokens", "b/tokens"], [60, 60], [100, 100], [30, 10**10])
    assert await units(pool, "a/tokens") == 70 * UNITS
    assert await units(pool, "b/tokens") == -100 * UNITS


async def test_the_lock_order_is_the_key_order_whatever_the_mix(pool: asyncpg.Pool) -> None:
    """Overlapping buckets, settlements in batches, expiry and renewal at once: Postgres would name a deadlock."""
    limits = [limit("tokens", 10**6, key=uuid.UUID(int=n)) for n in range(4)]
    random_ = random.Random(4)
    admitted: list[uuid.UUID] = []

    async def one_client() -> None:
        for _ in range(25):
            chosen = tuple(random_.sample(limits, random_.randint(1, 4)))
            one = demand(*chosen, tokens=100)
            assert (await admit(pool, one))["refused"] is None
            admitted.append(one.request_id)
            batch = random_.sample(admitted, min(5, len(admitted)))
            await pool.execute(SETTLE, batch, [0] * len(batch), [0] * len(batch))
            await pool.execute("SELECT expire_leases(10)")
            await pool.execute("SELECT renew('gw', $1, 15000)", batch)

    await asyncio.gather(*(one_client() for _ in range(8)))
    await pool.execute(SETTLE, admitted, [0] * len(admitted), [0] * len(admitted))
    levels = await pool.fetch("SELECT level FROM limiter_state")
    assert [record["level"] for record in levels] == [10**6 * UNITS] * 4
    assert await pool.fetchval("SELECT count(*) FROM inflight WHERE state <> 'settled'") == 0


async def test_buckets_that_many_make_at_once_lock_nobody_out(pool: asyncpg.Pool) -> None:
    """Each round has buckets that nobody has seen: half of the rounds met a deadlock when who made one held a lock."""
    random_ = random.Random(7)

    async def one_client(limits: list[Limit]) -> None:
        for _ in range(6):
            await admit(pool, demand(*random_.sample(limits, random_.randint(1, 6)), tokens=1))

    for number in range(8):
        limits = [limit("tokens", 10**6, key=uuid.UUID(int=12 * number + n)) for n in range(12)]
        await asyncio.gather(*(one_client(limits) for _ in range(8)))


@pytest.mark.usefixtures("patient_limits")
async def test_an_empty_bucket_of_requests_is_known_until_one_comes_back(pool: asyncpg.Pool) -> None:
    limits = (limit("requests", 1, burst=2), limit("tokens", 1, burst=1_000))
    first, second = demand(*limits), demand(*limits)
    now_us = 0  # by which it remembers: Postgres' own clock runs
    async with PgLimiter(pool, gateway_id="gw", now_us=lambda: now_us) as limiter:
        assert limiter.refuses(limits, 980) is None
        await limiter.admit(first)
        await limiter.admit(second)
        assert limiter.refuses(limits, 980) is None
        refused = await limiter.admit(demand(*limits))
        assert limiter.refuses(limits, 980) == refused
        assert limiter.refuses(limits, 1_000) is None  # whose tokens would make it wait longer
        limiter.started(first.request_id)
        await settle(limiter, first.request_id, 5)
        assert limiter.refuses(limits, 980) == refused
        await settle(limiter, second.request_id, 0)  # never started: its place comes back
        assert limiter.refuses(limits, 980) is None
        assert (await limiter.admit(demand(*limits))).refused is None
        await limiter.admit(demand(*limits))
        now_us = 60_000_000
        assert limiter.refuses(limits, 980) is None


async def test_buckets_fill_again_after_the_clock_of_postgres_was_set_back(
    pool: asyncpg.Pool, limiter: PgLimiter
) -> None:
    """Until it had come again to where it was, they would not, and refuse everybody for so long."""
    one = asked(100, tpm=100)
    assert (await limiter.admit(one)).refused is None
    async with asyncio.timeout(60):
        while not await pool.fetchval("SELECT count(*) FROM gateways"):  # from now on the clock is known
            await asyncio.sleep(0.02)
    hour_us, source = 3_600_000_000, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
    await pool.execute(
        f"CREATE OR REPLACE FUNCTION clock_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$ {source} - {hour_us} $$"
    )
    at_us = await pool.fetchval("SELECT at_us FROM limiter_state WHERE key = $1", TOKENS)
    limiter._upkeep_due.set()
    async with asyncio.timeout(60):
        while await pool.fetchval("SELECT at_us FROM limiter_state WHERE key = $1", TOKENS) > at_us - hour_us // 2:
            await asyncio.sleep(0.02)
    assert await units(pool, TOKENS) == 0


async def test_a_tenant_whose_row_somebody_holds_takes_no_more_than_one_connection(
    pool: asyncpg.Pool, limiter: PgLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever else asks meanwhile would wait for one of the six, as long as they wait for the row."""
    held, beside = uuid.UUID(int=21), uuid.UUID(int=22)

    def one(tenant: uuid.UUID) -> Demand:
        return demand(limit("tokens", 1_000, tenant=tenant), tenant=tenant, tokens=1)

    for tenant in (held, beside):
        assert (await limiter.admit(one(tenant))).refused_by is None
    async with pool.acquire() as operator:
        forgotten = operator.transaction()
        await forgotten.start()
        await operator.execute("SELECT FROM limiter_state WHERE key LIKE $1 FOR UPDATE", f"%{held}%")
        monkeypatch.setattr("gateway.admission.pg_limiter.ADMIT_TIMEOUT_S", 0.5)
        with pytest.raises(Unavailable):
            await limiter.admit(one(held))
        monkeypatch.setattr("gateway.admission.pg_limiter.ADMIT_TIMEOUT_S", 60)
        waiting = [asyncio.create_task(limiter.admit(one(held))) for _ in range(20)]
        for _ in range(5):
            assert (await limiter.admit(one(beside))).refused_by is None
        refused = [task.exception() for task in waiting if task.done()]
        assert len(refused) >= len(waiting) - 1
        assert {type(error) for error in refused} == {Unavailable}
        await forgotten.rollback()
    await asyncio.gather(*waiting, return_exceptions=True)
    async with asyncio.timeout(60):
        while limiter._held_up._asks:
            with contextlib.suppress(Unavailable):
                await limiter.admit(one(held))
    decisions = await asyncio.gather(*(limiter.admit(one(held)) for _ in range(20)))
    assert all(decision.refused_by is None for decision in decisions)
