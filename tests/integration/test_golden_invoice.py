"""Ten thousand generated requests through the real ledger, and an invoice worked out by hand beside it.

The reference knows nothing of the ledger: it takes each attempt once, finds its price in a list and adds fractions up
to the one rounding. The total is written down, so that neither of the two can change alone.
"""

import asyncio
import bisect
import datetime as dt
import random
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import pytest

from gateway.ledger import export as exports
from gateway.ledger.export_files import CsvWriter
from gateway.ledger.writer import Writer
from shared import wire
from tests.integration.bills import World, at, world
from tests.integration.test_ledger import event

SEED = 20_261_129
REQUESTS = 10_000
START, END = at("2026-03-01"), at("2026-04-01")
GOLDEN_MICRO = 111_302_750
GOLDEN_LINES = 10_412

TENANTS = ("acme", "hobby", "mill", "ship")
MODELS = ("small", "large", "unpriced")


@dataclass(frozen=True)
class Tariff:
    """Micro-units per million tokens, from a day of March on."""

    day: int
    model: str
    plan: str | None
    upm: tuple[int, int, int]  # input, cached input, output


TARIFFS = (
    Tariff(1, "small", None, (150_000, 37_500, 600_000)),
    Tariff(12, "small", None, (149_999, 1, 600_001)),
    Tariff(25, "small", None, (175_000, 175_000, 650_000)),
    Tariff(8, "small", "economy", (50_003, 0, 99_999)),
    Tariff(2, "large", None, (2_500_000, 1_250_000, 10_000_000)),
    Tariff(20, "large", None, (2_000_000, 500_000, 8_000_000)),
    Tariff(1, "large", "interactive", (3_000_001, 2_999_999, 15_000_007)),
)
MOVES = {  # each tenant's plans, from a day of March on
    "acme": ((1, "interactive"),),
    "hobby": ((1, "economy"), (15, "standard"), (28, "economy")),
    "mill": ((1, "standard"), (10, "interactive")),
    "ship": ((1, "standard"),),
}


def day(number: int) -> dt.datetime:
    return START + dt.timedelta(days=number - 1)


@dataclass(frozen=True)
class Attempt:
    request: uuid.UUID
    number: int
    final: bool
    made_at: dt.datetime
    tenant: str
    model: str
    prompt: int
    cached: int
    completion: int
    finish: str


def generate(chance: random.Random) -> list[Attempt]:
    attempts: list[Attempt] = []
    for _ in range(REQUESTS):
        made_ms = chance.randrange(int(START.timestamp() * 1000), int(END.timestamp() * 1000))
        request = uuid.UUID(
            int=made_ms << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62)
        )
        made_at = dt.datetime.fromtimestamp(made_ms / 1000, dt.UTC)
        tenant, model = chance.choice(TENANTS), chance.choices(MODELS, (10, 6, 1))[0]
        prompt = chance.choice((1, 2, 7, chance.randrange(1, 300), chance.randrange(1, 100_000)))
        cached = chance.choice((0, 0, chance.randrange(prompt + 1), prompt - 1))
        completion = chance.choice((1, chance.randrange(1, 50), chance.randrange(1, 4_000)))
        end = chance.choices(("stop", "length", "cancelled", "never ran", "lost"), (70, 10, 12, 4, 4))[0]
        one = Attempt(request, 1, True, made_at, tenant, model, prompt, cached, completion, end)
        attempts += chapters(one, chance)
    return attempts


def chapters(one: Attempt, chance: random.Random) -> list[Attempt]:
    """Its attempts: cut short where it was cancelled, nothing where it never ran, two where a worker was lost."""
    if one.finish == "cancelled":
        return [replace(one, completion=chance.randrange(one.completion + 1))]
    if one.finish == "never ran":
        return [replace(one, prompt=0, cached=0, completion=0, finish="cancelled")]
    if one.finish == "lost":
        first = chance.randrange(one.completion)
        return [
            replace(one, final=False, cached=0, completion=first),
            replace(one, number=2, prompt=0, cached=0, completion=one.completion - first, finish="stop"),
        ]
    return [one]


def plan_of(attempt: Attempt) -> str:
    moves = MOVES[attempt.tenant]
    return moves[bisect.bisect_right([day(number) for number, _ in moves], attempt.made_at) - 1][1]


def tariff_of(attempt: Attempt) -> Tariff | None:
    plan = plan_of(attempt)
    held = [one for one in TARIFFS if one.model == attempt.model and day(one.day) <= attempt.made_at]
    for whose in (plan, None):
        mine = [one for one in held if one.plan == whose]
        if mine:
            return max(mine, key=lambda one: one.day)
    return None


def cost(attempt: Attempt) -> int | None:
    tariff = tariff_of(attempt)
    if tariff is None:
        return None
    counts = (attempt.prompt - attempt.cached, attempt.cached, attempt.completion)
    exact = sum((Fraction(count * upm, 10**6) for count, upm in zip(counts, tariff.upm, strict=True)), Fraction())
    whole = exact.numerator // exact.denominator
    return whole + (exact - whole >= Fraction(1, 2))


async def lay_out(bills: World) -> tuple[dict[str, uuid.UUID], dict[str, uuid.UUID]]:
    """The same tariffs and moves in Postgres."""
    tenants = {name: await bills.tenant(name) for name in TENANTS}
    models = {name: await bills.model(name) for name in MODELS}
    for tariff in TARIFFS:
        later = [
            one.day for one in TARIFFS if (one.model, one.plan) == (tariff.model, tariff.plan) and one.day > tariff.day
        ]
        until = day(min(later)) if later else None
        await bills.price(models[tariff.model], tariff.upm, plan=tariff.plan, since=day(tariff.day), until=until)
    await bills.pool.execute("DELETE FROM tenant_plans")
    for name, moves in MOVES.items():
        ends = [*(day(number) for number, _ in moves[1:]), None]
        for (number, plan), until in zip(moves, ends, strict=True):
            await bills.pool.execute(
                "INSERT INTO tenant_plans VALUES ($1, $2, $3, $4)",
                tenants[name],
                await bills.plan(plan),
                day(number),
                until,
            )
    return tenants, models


async def deliver(bills: World, events: list[bytes], chance: random.Random) -> None:
    """In no order, some of them again, in batches of any size, through two ledgers at once."""
    batches: list[list[bytes]] = []
    queue = [*events, *chance.sample(events, len(events) // 20)]
    chance.shuffle(queue)
    while queue:
        size = chance.randrange(1, 500)
        batches.append(queue[:size])
        del queue[:size]

    async def ledger() -> None:
        writer = Writer(bills.pool)
        while batches:
            await writer.write(batches.pop())
            await bills.pool.fetchval("SELECT roll_up_usage(700)")

    await asyncio.gather(ledger(), ledger())


@pytest.mark.timeout(300)
async def test_the_invoice_is_right_to_the_micro_unit(database_url: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    attempts = generate(chance)
    async with world(database_url) as bills:
        tenants, models = await lay_out(bills)
        events = [
            wire.encode(
                event(
                    attempt.request,
                    attempt=attempt.number,
                    final=attempt.final,
                    tenant=str(tenants[attempt.tenant]),
                    model=str(models[attempt.model]),
                    prompt_tokens=attempt.prompt,
                    cached_tokens=attempt.cached,
                    completion_tokens=attempt.completion,
                    finish=attempt.finish,
                )
            )
            for attempt in attempts
        ]
        await deliver(bills, events, chance)
        await bills.settled()
        while await bills.pool.fetchval("SELECT roll_up_usage(5000)"):
            pass

        expected: Counter[tuple[str, str]] = Counter()
        unpriced = 0
        for attempt in attempts:
            price = cost(attempt)
            unpriced += price is None
            expected[attempt.tenant, attempt.model] += price or 0

        invoice = await bills.pool.fetch(
            "SELECT tenant, model, sum(total_micro), sum(unpriced_events), sum(requests) FROM billing_daily"
            " GROUP BY tenant, model"
        )
        assert {(row["tenant"], row["model"]): row[2] for row in invoice} == expected
        assert sum(row[3] for row in invoice) == unpriced > 0
        assert sum(row[4] for row in invoice) == REQUESTS
        async with bills.pool.acquire() as connection:
            within = await exports.bounds(connection, START, END, close=False)
            path = tmp_path / "march.csv"
            exported = await exports.write(connection, within, CsvWriter(path), path)
        assert (exported.row_count, exported.unpriced) == (len(attempts), unpriced)
        assert exported.total_micro == expected.total()
        assert (exported.row_count, exported.total_micro) == (GOLDEN_LINES, GOLDEN_MICRO)
