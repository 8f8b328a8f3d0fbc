"""Which price an event is billed by, whatever happens to prices and plans before and after it is booked."""

from collections.abc import AsyncIterator

import asyncpg
import pytest

from tests.integration.bills import World, at, world
from tests.integration.test_ledger import event

M = 1_000_000


@pytest.fixture
async def bills(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


async def test_cached_tokens_are_priced_apart(bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    price = await bills.price(model, (3 * M, 1 * M, 10 * M), since=at("2026-01-01"))
    request, cost = await bills.book(
        at("2026-02-01"), tenant=tenant, model=model, prompt_tokens=100, cached_tokens=60, completion_tokens=5
    )
    assert cost == 40 * 3 + 60 * 1 + 5 * 10
    assert await bills.pool.fetchval("SELECT price_id FROM usage_events WHERE request_id = $1", request) == price


async def test_a_late_event_is_billed_by_the_price_of_its_own_time(bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    await bills.price(model, (1 * M, 0, 0), since=at("2026-01-01"), until=at("2026-02-01"))
    await bills.price(model, (2 * M, 0, 0), since=at("2026-02-01"))
    costs = {
        when: (await bills.book(at(when), tenant=tenant, model=model, prompt_tokens=7))[1]
        for when in ("2025-12-31T23:59:59.999", "2026-01-01", "2026-01-31T23:59:59.999", "2026-02-01")
    }
    assert list(costs.values()) == [None, 7, 7, 14]


async def test_the_plan_that_the_tenant_had_decides_before_the_price_for_all(bills: World) -> None:
    tenant, other, model = await bills.tenant("acme"), await bills.tenant("other", "economy"), await bills.model("m")
    await bills.price(model, (5 * M, 0, 0), since=at("2026-01-01"))
    await bills.price(model, (1 * M, 0, 0), plan="economy", since=at("2026-01-01"))
    before = await bills.pool.fetchval("SELECT clock_timestamp()")
    await bills.pool.execute("UPDATE tenants SET plan_id = $1 WHERE name = 'acme'", await bills.plan("economy"))
    after = await bills.pool.fetchval("SELECT clock_timestamp() + interval '1 s'")
    booked = [(before, tenant), (after, tenant), (at("2026-01-02"), tenant), (at("2026-01-02"), other)]
    costs = [(await bills.book(when, tenant=who, model=model, prompt_tokens=1))[1] for when, who in booked]
    assert costs == [5, 1, 5, 1]


async def test_plans_follow_each_other_without_a_gap_even_when_the_clock_steps_back(bills: World) -> None:
    tenant = await bills.tenant("acme")
    for plan in ("economy", "interactive", "economy", "standard"):
        await bills.pool.execute("UPDATE tenants SET plan_id = $1", await bills.plan(plan))
    history = "SELECT plan_id, valid_from, valid_to FROM tenant_plans WHERE tenant_id = $1 ORDER BY valid_from"
    periods = await bills.pool.fetch(history, tenant)
    assert len(periods) == 5
    assert [period["valid_to"] for period in periods] == [period["valid_from"] for period in periods[1:]] + [None]
    await bills.pool.execute("UPDATE tenant_plans SET valid_from = 'infinity' WHERE valid_to IS NULL")
    await bills.pool.execute("UPDATE tenants SET plan_id = $1", await bills.plan("economy"))
    periods = await bills.pool.fetch(history, tenant)
    assert (len(periods), periods[-1]["plan_id"]) == (5, await bills.plan("economy"))


async def test_an_event_without_a_price_is_booked_without_a_cost_and_is_not_free(bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    await bills.price(model, (0, 0, 0), since=at("2026-01-01"))
    assert (await bills.book(at("2026-02-01"), tenant=tenant, model=model))[1] == 0
    assert (await bills.book(at("2026-02-01"), tenant=tenant, model=tenant))[1] is None
    assert (bills.writer.inserted_total, bills.writer.unpriced_total) == (2, 1)


async def test_a_new_price_changes_nothing_that_is_booked_and_redelivery_charges_nothing(bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    await bills.price(model, (1 * M, 0, 0), since=at("2026-01-01"))
    one = event(tenant=str(tenant), model=str(model), prompt_tokens=7, completion_tokens=0)
    await bills.write(one)
    await bills.pool.execute("UPDATE prices SET valid_to = '2026-01-02'")
    await bills.price(model, (9 * M, 0, 0), since=at("2026-01-02"))
    await bills.write(one)
    assert await bills.pool.fetchval("SELECT sum(cost_micro) FROM usage_events") == 7
    assert bills.writer.repeated_total == 1


@pytest.mark.parametrize(
    ("upm", "period", "currency", "constraint"),
    [
        ((1, 1, 1), ("2026-02-01", None), "EUR", "prices_no_overlap"),
        ((1, 1, 1), ("2025-01-01", "2026-01-02"), "EUR", "prices_no_overlap"),
        ((1, 2, 1), ("2025-01-01", "2025-02-01"), "EUR", "prices_cached_range"),
        ((-1, -1, 1), ("2025-01-01", "2025-02-01"), "EUR", "prices_"),
        ((1, 1, 10**13), ("2025-01-01", "2025-02-01"), "EUR", "prices_output_range"),
        ((1, 1, 1), ("2025-01-01", "2025-02-01"), "USD", "prices_one_currency"),
        ((1, 1, 1), ("2025-01-01", "2025-01-01"), "EUR", "prices_period"),
    ],
)
async def test_prices_that_cannot_be(
    bills: World, upm: tuple[int, int, int], period: tuple[str, str | None], currency: str, constraint: str
) -> None:
    model = await bills.model("m")
    await bills.price(model, (1, 1, 1), since=at("2026-01-01"))
    since, until = at(period[0]), None if period[1] is None else at(period[1])
    with pytest.raises(asyncpg.IntegrityConstraintViolationError, match=constraint):
        await bills.price(model, upm, since=since, until=until, currency=currency)


async def test_the_application_cannot_change_a_price_that_is_in_a_bill(bills: World) -> None:
    async with bills.pool.acquire() as connection:
        await connection.execute("SET ROLE forebay_app")
        for statement in ("UPDATE prices SET input_upm = 1", "DELETE FROM prices", "DELETE FROM usage_adjustments"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.execute("UPDATE prices SET valid_to = now()")
        await connection.execute("RESET ROLE")
