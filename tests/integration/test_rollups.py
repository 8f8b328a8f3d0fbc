"""Sums and cursors over lines that commit in any order: nothing is skipped, nothing counted twice."""

import contextlib
import datetime as dt
import random
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.ledger.books import Books
from shared.bus import Bus
from shared.ids import uuid7
from tests import services
from tests.integration.bills import World, at, world
from tests.integration.test_ledger import event, payload, publish, running, until_empty

M = 1_000_000
TABLES = ("usage_hourly", "usage_daily")
ADJUST = (
    "INSERT INTO usage_adjustments (request_id, attempt, occurred_at, tenant_id, api_key_id, model_id, tier, micro,"
    " reason, actor) SELECT request_id, attempt, occurred_at, tenant_id, api_key_id, model_id, tier, $1, 'r', 'a'"
    " FROM usage_events WHERE request_id = $2"
)


@pytest.fixture
async def bills(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


async def roll_up(bills: World, lines_max: int = 1_000, *, settled: bool = True) -> int:
    """How many calls it took. `settled`: nothing is held open, so that everything is taken."""
    if settled:
        await bills.settled()
    calls = 1
    while await bills.pool.fetchval("SELECT roll_up_usage($1)", lines_max):
        calls += 1
    return calls


async def sums(bills: World, table: str = "usage_hourly") -> list[int]:
    """Requests, tokens, cost with adjustments, adjustments."""
    row = await bills.pool.fetchrow(
        f"SELECT sum(requests), sum(prompt_tokens + completion_tokens), sum(cost_micro + adjusted_micro),"
        f" sum(adjustments) FROM {table}"
    )
    return [int(value or 0) for value in row]


async def drift(bills: World) -> int:
    return await bills.pool.fetchval("SELECT count(*) FROM rollup_drift('2000-01-01', '2100-01-01')")


async def priced(bills: World) -> dict[str, uuid.UUID]:
    model = await bills.model("m")
    await bills.price(model, (1 * M, 1 * M, 1 * M), since=at("2026-01-01"))
    return {"tenant": await bills.tenant("acme"), "model": model}


@contextlib.asynccontextmanager
async def uncommitted(bills: World, made_at: dt.datetime) -> AsyncIterator[asyncpg.Connection]:
    """A transaction that has booked one more event, a copy of another, made at that time."""
    async with bills.pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(
            "INSERT INTO usage_events (request_id, attempt, final, occurred_at, tenant_id, api_key_id, model_id, tier,"
            " prompt_tokens, cached_tokens, completion_tokens, recomputed_tokens, finish, total_ms, worker, gateway)"
            " SELECT $1, 1, true, $2, tenant_id, api_key_id, model_id, tier, 100, 0, 0, 0, 'stop', 1, 'w', 'g'"
            " FROM usage_events LIMIT 1",
            uuid7(made_at.timestamp()),
            made_at,
        )
        try:
            yield connection
        finally:
            await transaction.commit()


async def test_a_transaction_that_commits_late_is_neither_skipped_nor_counted_twice(bills: World) -> None:
    who = await priced(bills)
    await bills.book(at("2026-03-01"), prompt_tokens=10, completion_tokens=0, **who)
    await roll_up(bills)
    assert await sums(bills) == [1, 10, 10, 0]
    async with uncommitted(bills, at("2026-03-01T00:30")):
        await bills.book(at("2026-03-01"), prompt_tokens=1, completion_tokens=0, **who)
        await roll_up(bills, settled=False)
        assert await sums(bills) == [1, 10, 10, 0]  # what is above the open transaction waits with it
        assert await drift(bills) == 0
    await roll_up(bills)
    assert await sums(bills) == await sums(bills, "usage_daily") == [3, 111, 11, 0]
    await roll_up(bills)
    assert (await sums(bills), await drift(bills)) == ([3, 111, 11, 0], 0)


async def test_a_late_event_and_an_adjustment_reopen_their_hour(bills: World) -> None:
    who = await priced(bills)
    first, _ = await bills.book(at("2026-03-01T10:59:59.999"), prompt_tokens=5, completion_tokens=0, **who)
    await bills.book(at("2026-03-01T11:00"), prompt_tokens=7, completion_tokens=0, **who)
    await roll_up(bills)
    await bills.book(at("2026-03-01T10:00"), prompt_tokens=30, completion_tokens=0, final=False, **who)
    await bills.pool.execute(ADJUST, -2, first)
    await roll_up(bills)
    rows = await bills.pool.fetch(
        "SELECT hour, requests, events, cost_micro, adjustments, adjusted_micro FROM usage_hourly"
        " ORDER BY hour, api_key_id, cost_micro"
    )
    by_hour: dict[dt.datetime, list[int]] = {}
    for hour, *counts in rows:
        by_hour[hour] = [a + b for a, b in zip(by_hour.get(hour, [0] * 5), counts, strict=True)]
    assert by_hour == {at("2026-03-01T10:00"): [1, 2, 35, 1, -2], at("2026-03-01T11:00"): [1, 1, 7, 0, 0]}
    assert await sums(bills, "usage_daily") == [2, 42, 40, 1]
    assert await drift(bills) == 0


async def test_many_lines_are_taken_in_parts_and_one_transaction_whole(bills: World) -> None:
    who = await priced(bills)
    for count in (1, 4, 1, 1, 1):
        await bills.write(*[event(tenant=str(who["tenant"]), model=str(who["model"])) for _ in range(count)])
    assert await roll_up(bills, 2) == 3
    assert (await sums(bills))[0] == 8
    assert await drift(bills) == 0


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_commits_when_sums_are_those_of_the_lines_below_the_cursor(bills: World, seed: int) -> None:
    chance = random.Random(seed)
    who = await priced(bills)
    await bills.book(at("2026-03-01"), **who)
    consumed: list[tuple[uuid.UUID, int, uuid.UUID]] = []
    async with contextlib.AsyncExitStack() as held:
        open_ones: list[contextlib.AsyncExitStack] = []
        for _ in range(40):
            what = chance.choice(["book", "hold", "release", "roll", "read"])
            made_at = at("2026-03-01") + dt.timedelta(minutes=chance.randrange(3_000))
            if what == "book":  # one to three in one transaction
                names = {name: str(value) for name, value in who.items()}
                made = [event(uuid7(made_at.timestamp()), **names) for _ in range(chance.randrange(1, 4))]
                await bills.write(*made)
            elif what == "hold" and len(open_ones) < 2:
                one = contextlib.AsyncExitStack()
                await one.enter_async_context(uncommitted(bills, made_at))
                open_ones.append(one)
                held.push_async_exit(one)
            elif what == "release" and open_ones:
                await open_ones.pop(chance.randrange(len(open_ones))).aclose()
            elif what == "read":
                consumed += await read(bills, chance.randrange(1, 5))
            else:
                await roll_up(bills, chance.randrange(1, 4), settled=False)
            assert await drift(bills) == 0
    await roll_up(bills)
    while part := await read(bills, 2):
        consumed += part
    everything = await bills.pool.fetch("SELECT request_id, attempt, adjustment_id FROM usage_lines")
    assert sorted(consumed) == sorted(map(tuple, everything))
    assert (await sums(bills))[0] == len(everything)
    assert await drift(bills) == 0


async def read(bills: World, lines_max: int) -> list[tuple[uuid.UUID, int, uuid.UUID]]:
    """One transaction of a consumer with no more rights than billing has."""
    async with bills.pool.acquire() as connection, connection.transaction():
        await connection.execute("SET LOCAL ROLE forebay_billing")
        lines = await connection.fetch("SELECT * FROM billing_read('erp', $1)", lines_max)
        if lines:
            position = [lines[-1][name] for name in ("xid", "request_id", "attempt", "adjustment_id")]
            await connection.execute("SELECT billing_advance('erp', $1, $2, $3, $4)", *position)
        return [(line["request_id"], line["attempt"], line["adjustment_id"]) for line in lines]


async def test_a_cursor_goes_forward_and_never_past_what_is_open(bills: World) -> None:
    who = await priced(bills)
    await bills.book(at("2026-03-01"), **who)
    await bills.settled()
    [line] = await bills.pool.fetch("SELECT * FROM billing_read('erp', 10)")
    advance = "SELECT billing_advance($1, $2, $3, 1::smallint, $4)"
    zero = uuid.UUID(int=0)
    for consumer, xid in (("rollups", line["xid"]), ("erp", 2**60), ("nobody", line["xid"])):
        with pytest.raises(asyncpg.RaiseError, match="does not go there"):
            await bills.pool.execute(advance, consumer, xid, line["request_id"], zero)
    with pytest.raises(asyncpg.RaiseError, match="not for consumers"):
        await bills.pool.fetch("SELECT * FROM billing_read('rollups', 1)")
    await bills.pool.execute(advance, "erp", line["xid"], line["request_id"], zero)
    with pytest.raises(asyncpg.RaiseError, match="does not go there"):
        await bills.pool.execute(advance, "erp", 0, line["request_id"], zero)
    assert await bills.pool.fetch("SELECT * FROM billing_read('erp', 10)") == []


async def test_damaged_sums_are_found_and_made_anew(bills: World) -> None:
    who = await priced(bills)
    for day in ("2026-03-01", "2026-03-02", "2026-03-03"):
        await bills.book(at(day), **who)
    await roll_up(bills)
    before = [await bills.pool.fetch(f"SELECT * FROM {table} ORDER BY 1") for table in TABLES]
    await bills.pool.execute("UPDATE usage_hourly SET requests = 9 WHERE hour = '2026-03-02 00:00Z'")
    await bills.pool.execute("DELETE FROM usage_daily WHERE day = '2026-03-02 00:00Z'")
    await bills.book(at("2026-03-02"), **who)  # not in the sums yet, and not to be counted twice
    assert await drift(bills) == 3
    await bills.pool.execute("SELECT rebuild_rollups('2026-03-02', '2026-03-03')")
    assert [await bills.pool.fetch(f"SELECT * FROM {table} ORDER BY 1") for table in TABLES] == before
    await roll_up(bills)
    assert (await sums(bills))[0] == 4
    assert await drift(bills) == 0


async def test_the_books_say_until_when_they_are_complete(bills: World, nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="ledger") as bus:
        await publish(bus, payload(), payload())
        books = Books(bus, bills.pool)
        await books.look()
        waiting = await bills.pool.fetchrow("SELECT * FROM billing_completeness")
        assert waiting["pending"] == 2
        async with running(bus, bills.pool):
            await until_empty(bus)
        await books.look()
        complete = await bills.pool.fetchrow("SELECT * FROM billing_completeness")
        assert (complete["pending"], complete["complete_until"] >= waiting["complete_until"]) == (0, True)
        await publish(bus, payload())
        await bills.pool.execute("UPDATE usage_completeness SET complete_until = 'infinity'")
        await books.look()
        row = await bills.pool.fetchrow("SELECT complete_until = 'infinity' AS kept, pending FROM usage_completeness")
        assert tuple(row) == (True, 1)


async def test_the_roles_may_do_what_they_are_for_and_no_more(bills: World) -> None:
    await bills.book(at("2026-03-01"), **await priced(bills))
    may = {
        "forebay_app": (
            "SELECT roll_up_usage(10)",
            "SELECT rebuild_rollups('2026-03-01', '2026-03-02')",
            "SELECT * FROM rollup_drift('2026-03-01', '2026-03-02')",
            "INSERT INTO usage_completeness VALUES (true, now(), 0, now())",
            "SELECT * FROM billing_lines, billing_completeness",
        ),
        "forebay_billing": (
            "SELECT * FROM billing_lines, billing_hourly, billing_daily, billing_prices, billing_completeness",
            "SELECT * FROM billing_exports, billing_cursors",
            "SELECT * FROM billing_read('erp', 1)",
        ),
    }
    may_not = {
        "forebay_app": (
            "DELETE FROM usage_hourly",
            "UPDATE billing_cursors SET xid = '0'",
            "UPDATE usage_adjustments SET micro = 1",
            "DELETE FROM billing_exports",
        ),
        "forebay_billing": (
            "SELECT roll_up_usage(10)",
            "INSERT INTO usage_adjustments (reason) VALUES ('r')",
            "UPDATE billing_cursors SET xid = '0'",
            "SELECT * FROM api_keys",
        ),
    }
    async with bills.pool.acquire() as connection:
        for role, statements in may.items():
            await connection.execute(f"SET ROLE {role}")
            for statement in statements:
                await connection.execute(statement)
            for statement in may_not[role]:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await connection.execute(statement)
            await connection.execute("RESET ROLE")
