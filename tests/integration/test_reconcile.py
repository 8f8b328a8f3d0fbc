"""What workers counted against what is booked."""

import datetime as dt
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

from cli.errors import CommandError
from gateway.ledger.counters import Counters
from shared import wire
from tests.integration.bills import World, world
from tests.integration.test_catalogue import forebay
from tests.integration.test_ledger import event

__all__ = ["forebay"]

Forebay = Callable[..., Awaitable[str]]

BEAT = wire.WorkerBeat(
    worker="w-1",
    incarnation="i",
    pool="p",
    model="m",
    card="c",
    ready=True,
    draining=False,
    running=0,
    waiting=0,
    blocks_free=1,
    blocks_total=1,
    step_age_ms=0,
    bills=2,
    billed_prompt_tokens=14,
    billed_completion_tokens=22,
)


@pytest.fixture
async def bills(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


async def hear(where: World, **counts: int) -> None:
    """A gateway writes down this beat."""
    await Counters(where.pool, lambda: [msgspec.structs.replace(BEAT, **counts)]).keep()


async def look(bills: World, *, ahead: dt.timedelta) -> None:
    """A ledger saw that all is booked that was durable until `ahead` of now."""
    await bills.pool.execute(
        "INSERT INTO usage_completeness VALUES (true, now() + $1, 0, now())"
        " ON CONFLICT (single) DO UPDATE SET complete_until = excluded.complete_until",
        ahead,
    )


async def test_counts_only_grow_whichever_gateway_writes_last(bills: World) -> None:
    await hear(bills)
    await hear(bills, bills=1, billed_prompt_tokens=15)
    await Counters(bills.pool, list).keep()
    row = await bills.pool.fetchrow("SELECT bills, prompt_tokens, completion_tokens FROM worker_counters")
    assert tuple(row) == (2, 15, 22)
    await bills.pool.execute("UPDATE worker_counters SET observed_at = now() - interval '101 days'")
    await Counters(bills.pool, list).keep()
    assert await bills.pool.fetchval("SELECT count(*) FROM worker_counters") == 0


async def test_bills_that_are_missing_are_drift_once_they_would_be_booked(
    bills: World, forebay: Forebay, capsys: pytest.CaptureFixture[str]
) -> None:
    await bills.write(event(), event(worker="w-2"), event(finish="lost"))
    await hear(bills)
    await look(bills, ahead=dt.timedelta(seconds=-5))
    with pytest.raises(CommandError, match="not yet complete"):
        await forebay("usage", "reconcile", "--wait-s", "0")
    await look(bills, ahead=dt.timedelta(minutes=1))
    with pytest.raises(CommandError, match="do not agree"):
        await forebay("usage", "reconcile", "--json")
    row = json.loads(capsys.readouterr().out)
    assert (row["bills"], row["booked"], row["tokens"], row["missing"]) == (2, 1, 36, 18)
    await bills.write(event(), event())  # one more than was counted: billed after the last beat
    assert '"missing":0' in await forebay("usage", "reconcile", "--json")


async def test_drift_of_the_sums_is_found_and_mended_by_command(
    bills: World, forebay: Forebay, capsys: pytest.CaptureFixture[str]
) -> None:
    await bills.write(event())
    await bills.settled()
    await bills.pool.fetchval("SELECT roll_up_usage(100)")
    await bills.pool.execute("UPDATE usage_daily SET prompt_tokens = 0")
    with pytest.raises(CommandError, match="do not agree"):
        await forebay("usage", "reconcile")
    assert "ALERT: 2 rows of the hourly and daily sums" in capsys.readouterr().err
    today = dt.datetime.now(dt.UTC).date()
    days = ("--since", str(today - dt.timedelta(days=1)), "--until", str(today + dt.timedelta(days=1)))
    await forebay("usage", "rebuild", *days)
    await forebay("usage", "reconcile")


async def test_the_command_says_what_waits_and_what_is_set_aside(bills: World, forebay: Forebay) -> None:
    with pytest.raises(CommandError, match="no ledger has looked yet"):
        await forebay("usage", "completeness")
    await look(bills, ahead=dt.timedelta(0))
    await bills.writer.write([b"poison"])
    assert "1 events are set aside" in await forebay("usage", "completeness")
    assert json.loads(await forebay("usage", "completeness", "--json"))["pending"] == 0
