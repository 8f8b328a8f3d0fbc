"""Prices, usage and corrections by the administrators' API."""

import uuid
from collections.abc import AsyncIterator

import pytest

from gateway import keys
from gateway.db.adjustments import MICRO_MAX
from tests.integration.administration import call
from tests.integration.bills import World, at, world
from tests.scripted_gateway import ScriptedGateway, scripted_gateway

NAMED = {"idempotency-key": "once"}
PRICE = {"model": "m", "input_upm": 1_000_000, "output_upm": 2_000_000, "currency": "EUR"}


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(database_url=database_url) as running:
        yield running


@pytest.fixture
async def bills(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


async def test_a_price_from_setting_to_ending_with_its_trace(gateway: ScriptedGateway, bills: World) -> None:
    await bills.model("m")
    made = await call(gateway, "POST", "/prices", PRICE, NAMED)
    again = await call(gateway, "POST", "/prices", PRICE, NAMED)
    assert (made.status, again.json) == (201, made.json)
    assert (made.json["cached_input_upm"], made.json["plan"], made.json["valid_to"]) == (1_000_000, None, None)
    later = {**PRICE, "input_upm": 3, "cached_input_upm": 0, "plan": "economy", "valid_from": "2126-01-01T00:00:00Z"}
    assert (await call(gateway, "POST", "/prices", later)).status == 201
    ended = await call(gateway, "POST", "/prices/end", {"model": "m"})
    assert (ended.status, ended.json["id"]) == (200, made.json["id"])
    assert ended.json["valid_to"] is not None
    listed = await call(gateway, "GET", "/prices?model=m")
    assert [row["plan"] for row in listed.json["data"]] == ["economy"]
    first = await call(gateway, "GET", "/prices?history=true&limit=1")
    assert ([row["id"] for row in first.json["data"]], first.json["has_more"]) == ([made.json["id"]], True)
    changes = await bills.pool.fetch("SELECT action, object_id FROM audit_log WHERE object_type = 'price' ORDER BY id")
    assert [row["action"] for row in changes] == ["create", "create", "update"]
    assert changes[2]["object_id"] == made.json["id"]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "x"}, 404, "no model called x"),
        ({"input_upm": -1}, 400, "input_upm"),
        ({"input_upm": 1.5}, 400, "input_upm"),
        ({"output_upm": 10**13}, 400, "output_upm"),
        ({"cached_input_upm": 1_000_001}, 400, "cached_input_upm is 0 to input_upm"),
        ({"currency": "USD"}, 400, "all prices have one currency"),
        ({"currency": "euro"}, 400, "currency"),
        ({"valid_from": "2020-01-01T00:00:00"}, 400, "valid_from"),
    ],
)
async def test_a_price_that_cannot_be_is_refused_and_leaves_nothing(
    gateway: ScriptedGateway, bills: World, change: dict[str, object], status: int, message: str
) -> None:
    other = await bills.model("m"), await bills.model("other")
    await bills.price(other[1], (1, 1, 1), since=at("2026-01-01"))
    refused = await call(gateway, "POST", "/prices", {**PRICE, **change})
    assert (refused.status, message in refused.error["message"]) == (status, True), refused.body
    assert await bills.pool.fetchval("SELECT count(*) FROM prices WHERE model_id = $1", other[0]) == 0
    assert await bills.pool.fetchval("SELECT count(*) FROM audit_log") == 0


async def test_usage_and_its_corrections(gateway: ScriptedGateway, bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    await bills.price(model, (1_000_000, 0, 1_000_000), since=at("2026-01-01"))
    request, _ = await bills.book(at("2026-03-01"), tenant=tenant, model=model)
    await bills.book(at("2026-04-01"), tenant=tenant, model=model)
    body = {"request_id": str(request), "micro": -8, "reason": "promised"}
    made = await call(gateway, "POST", "/usage/adjustments", body, NAMED)
    assert (made.status, (await call(gateway, "POST", "/usage/adjustments", body, NAMED)).json) == (201, made.json)
    assert (made.json["micro"], made.json["actor"][:4]) == (-8, "key:")
    march = await call(gateway, "GET", "/usage?tenant=acme&since=2026-03-01T00:00:00Z&until=2026-04-01T00:00:00Z")
    [row] = march.json["data"]
    assert (row["requests"], row["cost_micro"], march.json["completeness"]) == (1, 10, None)
    for change, status in (
        ({"micro": -11}, 400),
        ({"micro": 0}, 400),
        ({"reason": f"given to {keys.generate('live')[0]}"}, 400),
        ({"request_id": str(uuid.uuid4())}, 404),
    ):
        assert (await call(gateway, "POST", "/usage/adjustments", {**body, **change})).status == status
    listed = await call(gateway, "GET", f"/usage/adjustments?request_id={request}")
    assert listed.json["data"] == [made.json]
    assert await bills.pool.fetchval("SELECT count(*) FROM audit_log WHERE object_type = 'adjustment'") == 1


async def test_no_mistake_of_an_administrator_stops_the_sums(gateway: ScriptedGateway, bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    await bills.price(model, (1_000_000, 0, 1_000_000), since=at("2026-01-01"))
    request, cost = await bills.book(at("2026-03-31"), tenant=tenant, model=model)
    body = {"request_id": str(request), "micro": MICRO_MAX - cost, "reason": "too many noughts"}
    made = [(await call(gateway, "POST", "/usage/adjustments", body)).status for _ in range(11)]
    assert made == [201] + [400] * 10
    await bills.settled()
    await bills.pool.execute("SELECT roll_up_usage(100)")
    assert await bills.pool.fetchval("SELECT adjusted_micro FROM usage_daily") == MICRO_MAX - cost


async def test_budgets_count_corrections_once_in_the_requests_own_month(gateway: ScriptedGateway, bills: World) -> None:
    tenant, model = await bills.tenant("acme"), await bills.model("m")
    await bills.price(model, (1_000_000, 0, 1_000_000), since=at("2026-01-01"))
    request, cost = await bills.book(at("2026-03-31"), tenant=tenant, model=model)
    await bills.book(at("2026-04-01"), tenant=tenant, model=model)
    assert cost == 18

    async def spent(month: str) -> list[int]:
        found = await bills.pool.fetch(
            "SELECT spent FROM budget_state WHERE metric = 'month_cost' AND period_start = $1",
            at(month),
        )
        return [row["spent"] for row in found]

    body = {"request_id": str(request), "reason": "promised"}
    for micro, left, key in ((-8, 10, "back"), (5, 15, "forth"), (-15, 0, "all")):
        for _ in range(2):
            made = await call(gateway, "POST", "/usage/adjustments", {**body, "micro": micro}, {"idempotency-key": key})
            assert made.status == 201
            assert await spent("2026-03-01") == [left] * 4
    assert (await call(gateway, "POST", "/usage/adjustments", {**body, "micro": -1})).status == 400
    assert await spent("2026-03-01") == [0] * 4
    assert await spent("2026-04-01") == [18] * 4
    tokens = "SELECT DISTINCT spent FROM budget_state WHERE metric = 'day_tokens'"
    assert [row["spent"] for row in await bills.pool.fetch(tokens)] == [18]
