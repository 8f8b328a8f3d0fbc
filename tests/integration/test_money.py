"""A price, a budget and the ledger together: requests are admitted as long as the most that they can cost fits the
budget, and what they did not cost after all is there again once they are booked.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from gateway import keys
from gateway.admission.pg_limiter import PgLimiter
from gateway.admission.prices import PriceBook
from gateway.auth import quotas
from gateway.db import catalogue, engine, prices, queries
from gateway.db.catalogue import Limits
from gateway.db.prices import Terms
from tests.answers import Answer
from tests.integration.bills import World, at, world
from tests.integration.test_ledger import event
from tests.scripted_gateway import KEY, Caller, Play, ScriptedGateway, eventually, scripted_gateway, speak
from tests.tiny_model import MODEL, MODEL_ID, chat_prompt_tokens

CHAT = "/v1/chat/completions"
OUTPUT = 20
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": OUTPUT}
PROMPT = chat_prompt_tokens("hi")
PRICE = Terms(input_upm=2_000_000, cached_input_upm=1_000_000, output_upm=10_000_000, currency="EUR")
CEILING = 2 * PROMPT + 10 * OUTPUT  # micro-units, the most that a request can cost
COST = 2 + (PROMPT - 1) + 10 * 3  # what it costs here: all but one token of the prompt cached, three written
FIT = 3  # requests at once; a fourth needs what one of them has not cost
BUDGET = FIT * CEILING + COST


@pytest.fixture
async def bills(database_url: str) -> AsyncIterator[World]:
    async with world(database_url) as made:
        yield made


@pytest.fixture
async def gateway(database_url: str, bills: World, patient_limits: None) -> AsyncIterator[ScriptedGateway]:
    """The model, its price, the tenant and its budget are rows; only the workers are scripted."""
    database = engine.create(database_url)
    await bills.pool.execute(
        "INSERT INTO models (id, alias, context_length, vocab_size, card) VALUES ($1, $2, 9, 9, '')", MODEL_ID, MODEL
    )
    await prices.set_price(database, MODEL, PRICE, since=at("2026-01-01"))
    await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits(month_cost=BUDGET))
    _, record = keys.generate("test")
    await catalogue.create_key(database, "acme", record, scopes=frozenset({"inference"}))
    stored = await queries.find_key(database, record.public_id)
    assert stored is not None
    book = PriceBook(database)
    await book.read()
    async with (
        PgLimiter(bills.pool, gateway_id="gw") as limiter,
        scripted_gateway(real_limiter=limiter, pricer=book) as running,
    ):
        running.principals.callers[KEY] = Caller(
            tenant_id=stored.tenant_id, key_id=stored.key_id, plan_id=stored.plan_id, limits=quotas.limits(stored)
        )
        yield running
    await database.dispose()


async def book(bills: World, play: Play) -> None:
    """What the worker bills for its job, by way of the ledger."""
    job = play.job
    used = {"prompt_tokens": PROMPT, "cached_tokens": PROMPT - 1, "completion_tokens": 3}
    await bills.write(event(uuid.UUID(job.request), tenant=job.tenant, key=job.key, model=job.model, **used))


def check_refused(answer: Answer) -> None:
    assert (answer.status, answer.error["code"]) == (429, "insufficient_quota")
    assert (answer.headers["x-should-retry"], answer.headers.get("retry-after")) == ("false", None)


async def test_a_budget_admits_what_is_sure_to_fit_and_gets_back_what_was_not_spent(
    gateway: ScriptedGateway, bills: World
) -> None:
    go_on = asyncio.Event()

    async def wait(play: Play) -> None:
        await go_on.wait()
        await speak(play)

    gateway.dispatcher.script = wait
    asked = [asyncio.create_task(gateway.post(CHAT, ASK)) for _ in range(FIT)]
    await eventually(lambda: gateway.dispatcher.open_now == FIT)
    refused = await gateway.post(CHAT, ASK)
    check_refused(refused)
    assert f"Limit {BUDGET}, used {FIT * CEILING}, requested {CEILING}." in refused.error["message"]

    await book(bills, gateway.dispatcher.plays[0])
    asked.append(asyncio.create_task(gateway.post(CHAT, ASK)))
    await eventually(lambda: gateway.dispatcher.open_now == FIT + 1)
    refused = await gateway.post(CHAT, ASK)
    check_refused(refused)
    assert f"Limit {BUDGET}, used {BUDGET}, requested {CEILING}." in refused.error["message"]

    go_on.set()
    assert [answer.status for answer in await asyncio.gather(*asked)] == [200] * (FIT + 1)
    for play in gateway.dispatcher.plays[1:]:
        await book(bills, play)
    spent = "SELECT DISTINCT spent FROM budget_state WHERE metric = 'month_cost'"
    assert [row["spent"] for row in await bills.pool.fetch(spent)] == [(FIT + 1) * COST]
    assert await bills.pool.fetchval("SELECT sum(cost_micro) FROM usage_events") == (FIT + 1) * COST
    assert await bills.pool.fetchval("SELECT count(*) FROM inflight") == 0
    assert (await gateway.post(CHAT, ASK)).status == 200
