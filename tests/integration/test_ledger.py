"""Usage from JetStream into Postgres: each event once, however often, to whomever and in what company it comes."""

import asyncio
import contextlib
import datetime as dt
import shutil
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import asyncpg
import msgspec
import pytest

from cli.ledger import LedgerSettings, connections
from gateway.admission.bucket import UNITS
from gateway.db import pools
from gateway.ledger.consumer import Ledger
from gateway.ledger.writer import Writer
from shared import jobs, subjects, wire
from shared.bus import Bus
from shared.ids import uuid7, uuid7_wall_s
from shared.settings import load
from tests import services


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    async with pools.create(database_url, connections_max=4) as pool:
        yield pool


def event(request: uuid.UUID | None = None, **fields: Any) -> wire.UsageEvent:
    given = wire.UsageEvent(
        request=str(request or uuid7()),
        attempt=1,
        final=True,
        tenant=str(uuid7()),
        key=str(uuid7()),
        model=str(uuid7()),
        tier=0,
        prompt_tokens=7,
        cached_tokens=0,
        completion_tokens=11,
        recomputed_tokens=0,
        finish="stop",
        ttft_ms=12,
        total_ms=120,
        worker="w-1",
        gateway="gw-1",
    )
    return msgspec.structs.replace(given, **fields)


def payload(**fields: Any) -> bytes:
    return wire.encode(event(**fields))


async def count(pool: asyncpg.Pool, table: str = "usage_events") -> int:
    return await pool.fetchval(f"SELECT count(*) FROM {table}")


async def reserve(pool: asyncpg.Pool, request: uuid.UUID, tokens: int) -> None:
    await pool.fetchrow(
        "SELECT * FROM admit($1, $2, $3, 'gw', 15000, $4, ARRAY['t/tokens'], ARRAY[1::bigint], ARRAY[1000::bigint],"
        " ARRAY[$4::bigint], ARRAY['t/tokens'], ARRAY[1000::bigint])",
        request,
        uuid7(),
        uuid7(),
        tokens,
    )


class TestWriter:
    async def test_an_event_becomes_a_row_in_the_partition_of_its_request(self, pool: asyncpg.Pool) -> None:
        one = event(cached_tokens=5, preemptions=3)
        await Writer(pool).write([wire.encode(one)])
        row = await pool.fetchrow("SELECT *, tableoid::regclass::text AS partition FROM usage_events")
        occurred = dt.datetime.fromtimestamp(uuid7_wall_s(uuid.UUID(one.request)), dt.UTC)
        assert row["partition"] == f"usage_events_{occurred:%Y%m%d}"
        assert row["occurred_at"] == occurred
        named = ("attempt", "final", "tier", "prompt_tokens", "cached_tokens", "completion_tokens", "preemptions")
        named += ("finish", "ttft_ms", "worker")
        assert [row[name] for name in named] == [getattr(one, name) for name in named]
        assert (str(row["tenant_id"]), str(row["api_key_id"]), str(row["model_id"])) == (one.tenant, one.key, one.model)

    async def test_redelivery_changes_nothing_across_midnight_and_batches(self, pool: asyncpg.Pool) -> None:
        midnight = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        batch = [
            payload(request=uuid7(midnight + offset)) for offset in (-0.001, 0, 0.001, 86_399.999, -(10**6), 10**6)
        ]
        writer = Writer(pool)
        await writer.write(batch)
        await writer.write([*batch, payload(), *reversed(batch)])
        assert await count(pool) == 7
        assert (writer.inserted_total, writer.repeated_total) == (7, 12)

    async def test_attempts_are_separate_bills(self, pool: asyncpg.Pool) -> None:
        request = uuid7()
        await Writer(pool).write([payload(request=request, final=False), payload(request=request, attempt=2)])
        assert await count(pool) == 2

    @pytest.mark.parametrize(
        "poison",
        [
            b"\xff not msgpack",
            payload(request="not-a-uuid"),
            payload(request=str(uuid.uuid4())),
            payload(prompt_tokens=-1),
            payload(prompt_tokens=2**63),
            payload(attempt=0),
            payload(attempt=40_000),
            payload(cached_tokens=8),
            payload(finish="a\0b"),
        ],
        ids=["bytes", "id", "uuid4", "negative", "bigint", "attempt0", "smallint", "cached", "nul"],
    )
    async def test_a_poisonous_event_is_set_aside_alone(self, pool: asyncpg.Pool, poison: bytes) -> None:
        good = [payload() for _ in range(9)]
        writer = Writer(pool)
        for _ in range(2):
            await writer.write([*good[:4], poison, *good[4:]])
        assert await count(pool) == 9
        [rejected] = await pool.fetch("SELECT payload, reason FROM usage_rejected")
        assert rejected["payload"] == poison
        assert rejected["reason"]

    async def test_a_final_event_settles_and_closes_what_its_gateway_left_open(self, pool: asyncpg.Pool) -> None:
        request, other = uuid7(), uuid7()
        await reserve(pool, request, 600)
        await reserve(pool, other, 100)
        await Writer(pool).write(
            [payload(request=request, final=False), payload(request=request, attempt=2, prompt_tokens=0)]
        )
        assert [record["request_id"] for record in await pool.fetch("SELECT request_id FROM inflight")] == [other]
        assert await pool.fetchval("SELECT level / $1 FROM limiter_state", UNITS) == 1000 - 100 - (7 + 11 + 11)

    async def test_a_settled_reservation_is_not_refunded_again(self, pool: asyncpg.Pool) -> None:
        request = uuid7()
        await reserve(pool, request, 600)
        await pool.execute("SELECT settle($1, $2)", [request], [18])
        before = await pool.fetchval("SELECT level FROM limiter_state")
        await Writer(pool).write([payload(request=request, completion_tokens=0)])
        assert await pool.fetchval("SELECT level FROM limiter_state") == before
        assert await count(pool, "inflight") == 0

    async def test_an_event_that_is_not_final_leaves_the_reservation(self, pool: asyncpg.Pool) -> None:
        request = uuid7()
        await reserve(pool, request, 600)
        await Writer(pool).write([payload(request=request, final=False)])
        assert await count(pool, "inflight") == 1

    async def test_upkeep_makes_days_ahead_and_leaves_those_that_have_rows_elsewhere(self, pool: asyncpg.Pool) -> None:
        await pool.fetchval("SELECT make_usage_partitions(7)")  # the template may be of yesterday
        far = dt.datetime.now(dt.UTC) + dt.timedelta(days=9)
        await Writer(pool).write([payload(request=uuid7(far.timestamp()))])
        assert await count(pool, "usage_events_default") == 1
        assert await pool.fetchval("SELECT make_usage_partitions(10)") == 2
        assert await pool.fetchval("SELECT to_regclass($1)", f"usage_events_{far:%Y%m%d}") is None
        await pool.execute("INSERT INTO config_changes (changed_at) VALUES (now() - interval '2 days')")
        await Writer(pool).upkeep()
        assert await pool.fetchval("SELECT min(changed_at) > now() - interval '1 day' FROM config_changes")


@contextlib.asynccontextmanager
async def running(bus: Bus, pool: asyncpg.Pool) -> AsyncGenerator[Ledger]:
    ledger = Ledger(bus, pool)
    task = asyncio.create_task(ledger.run())
    try:
        yield ledger
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def publish(bus: Bus, *events: bytes) -> None:
    await bus.wait_ready(60)
    await jobs.ensure_stream(bus, subjects.usage_stream())
    jetstream = bus.jetstream()
    for data in events:
        await jetstream.publish(subjects.USAGE_SUBJECT, data, timeout=60)


async def until_count(pool: asyncpg.Pool, expected: int, table: str = "usage_events") -> None:
    async with asyncio.timeout(60):
        while await count(pool, table) < expected:
            await asyncio.sleep(0.02)
    assert await count(pool, table) == expected


async def until_empty(bus: Bus) -> None:
    async with asyncio.timeout(60):
        while (await bus.jetstream().stream_info(subjects.USAGE_STREAM)).state.messages:
            await asyncio.sleep(0.02)


class TestLedger:
    @pytest.fixture
    async def bus(self, nats_server: services.NatsServer) -> AsyncIterator[Bus]:
        async with Bus(nats_server.url, name="test", role="ledger") as bus:
            yield bus

    async def test_events_arrive_once_through_two_competing_ledgers(self, bus: Bus, pool: asyncpg.Pool) -> None:
        events = [payload() for _ in range(300)]
        async with running(bus, pool), running(bus, pool):
            await publish(bus, *events, *events[:100], b"poison")
            await until_empty(bus)
        await until_count(pool, 300)
        await until_count(pool, 1, "usage_rejected")

    async def test_what_was_published_before_the_ledger_started_is_not_lost(self, bus: Bus, pool: asyncpg.Pool) -> None:
        await publish(bus, payload(), payload())
        async with running(bus, pool):
            await until_count(pool, 2)

    async def test_nothing_is_acknowledged_that_is_not_committed(self, bus: Bus, pool: asyncpg.Pool) -> None:
        """Postgres refuses for a while in a way that is not the events' fault."""
        await pool.execute("ALTER TABLE usage_events RENAME TO elsewhere")
        async with running(bus, pool):
            await publish(bus, payload(), payload(), payload())
            await asyncio.sleep(0.5)
            assert (await bus.jetstream().stream_info(subjects.USAGE_STREAM)).state.messages == 3
            await pool.execute("ALTER TABLE elsewhere RENAME TO usage_events")
            await until_empty(bus)
        await until_count(pool, 3)
        assert await count(pool, "usage_rejected") == 0

    @pytest.mark.parametrize("fault", ["stopped", "killed", "emptied"])
    async def test_the_ledger_survives_a_restart_of_nats(
        self, bus: Bus, pool: asyncpg.Pool, nats_server: services.NatsServer, fault: str
    ) -> None:
        async with running(bus, pool):
            await publish(bus, payload())
            await until_count(pool, 1)
            nats_server.stop(kill=fault == "killed")
            if fault == "emptied":
                shutil.rmtree(nats_server.directory / "js")
            async with asyncio.timeout(60):
                while bus.ready:
                    await asyncio.sleep(0.02)
            nats_server.start()
            await publish(bus, payload())
            await until_count(pool, 2)

    async def test_a_ledger_of_its_own_process_works_and_stops_when_told(
        self, bus: Bus, pool: asyncpg.Pool, nats_server: services.NatsServer, database_url: str
    ) -> None:
        environ = {"FOREBAY_POSTGRES_URL": database_url, "FOREBAY_NATS_URL": nats_server.url, "PATH": ""}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cli.main", "ledger", env=environ, stderr=asyncio.subprocess.PIPE
        )
        await publish(bus, payload())
        await until_count(pool, 1)
        process.terminate()
        _, errors = await process.communicate()
        assert process.returncode == 0, errors


@pytest.mark.parametrize(("pooler", "prepared"), [("true", 0), ("false", 1)])
async def test_a_ledger_behind_a_pooler_prepares_no_statement_by_name(
    database_url: str, pooler: str, prepared: int
) -> None:
    environ = {"POSTGRES_URL": database_url, "NATS_URL": "nats://127.0.0.1:1", "POSTGRES_POOLER": pooler}
    settings = load(LedgerSettings, {f"FOREBAY_{name}": value for name, value in environ.items()})
    async with connections(settings) as pool, pool.acquire() as connection:
        await connection.fetch("SELECT 1 WHERE $1", True)
        named = "SELECT count(*) FROM pg_prepared_statements WHERE name <> '' AND statement LIKE 'SELECT 1 WHERE%'"
        assert await connection.fetchval(named) == prepared
