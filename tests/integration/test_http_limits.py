"""Limits over HTTP, with real reservations: whatever becomes of a request, its place comes back, and what a client sets
is what is reserved."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from gateway.admission.limiter import Limit, Metric
from gateway.admission.pg_limiter import PgLimiter
from gateway.db import pools
from gateway.errors import QueueFull, RequestFailed, WorkerLost
from tests.demands import limit
from tests.scripted_gateway import AUTH, KEY, Caller, Play, ScriptedGateway, eventually, scripted_gateway, speak
from tests.tiny_model import CONTEXT, MODEL, chat_prompt_tokens

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 20}
PROMPT = chat_prompt_tokens("hi")


@pytest.fixture
async def gateway(database_url: str, patient_limits: None) -> AsyncIterator[ScriptedGateway]:
    async with (
        pools.create(database_url, connections_max=4) as pool,
        PgLimiter(pool, gateway_id="gw") as limiter,
        scripted_gateway(real_limiter=limiter) as running,
    ):
        yield running


def allow(gateway: ScriptedGateway, *limits: Limit) -> None:
    gateway.principals.callers[KEY] = Caller(limits=limits)


async def leave_in_the_middle(gateway: ScriptedGateway) -> None:
    """A client that goes after a token, while more would come."""

    async def endless(play: Play) -> None:
        play.send(play.chunk("x"))
        await asyncio.Event().wait()

    gateway.dispatcher.script = endless
    async with aiohttp.ClientSession() as client:
        response = await client.post(gateway.base + CHAT, json={**ASK, "stream": True}, headers=AUTH)
        await response.content.readuntil(b'"content":"x"')
        response.close()
    await eventually(lambda: gateway.dispatcher.open_now == 0)
    gateway.dispatcher.script = speak


async def test_a_request_that_fails_gives_its_place_back(gateway: ScriptedGateway) -> None:
    """One place, which each failure would block for ever if it kept it."""
    allow(gateway, limit("concurrency", 1), limit("queued_requests", 1))

    async def lost(play: Play) -> None:
        play.send(play.chunk("x"))
        play.fail(WorkerLost("gone"))

    async def failed(play: Play) -> None:
        play.fail(RequestFailed("broken"))

    bodies: list[object] = [
        {**ASK, "messages": [{"role": "user2", "content": "hi"}]},
        {**ASK, "model": "unknown"},
        {**ASK, "messages": [{"role": "user", "content": "x" * (CONTEXT + 1)}]},
        b"{not json",
    ]
    for body in bodies:
        assert (await gateway.post(CHAT, body)).status in {400, 404}
        assert (await gateway.post(CHAT, ASK)).status == 200
    for script in (lost, failed):
        for stream in (False, True):
            gateway.dispatcher.script = script
            await gateway.post(CHAT, {**ASK, "stream": stream})
            gateway.dispatcher.script = speak
            assert (await gateway.post(CHAT, ASK)).status == 200
    gateway.dispatcher.refuse = QueueFull("full", retry_after_ms=1)
    assert (await gateway.post(CHAT, ASK)).error["code"] == "slow_down"
    gateway.dispatcher.refuse = None
    await leave_in_the_middle(gateway)
    await eventually(lambda: gateway.services.gate.taken == 0)
    assert (await gateway.post(CHAT, ASK)).status == 200


async def test_never_more_run_than_may_and_the_others_are_told_when(gateway: ScriptedGateway) -> None:
    allow(gateway, limit("concurrency", 3))
    go_on = asyncio.Event()

    async def wait(play: Play) -> None:
        await go_on.wait()
        await speak(play)

    gateway.dispatcher.script = wait
    tasks = [asyncio.create_task(gateway.post(CHAT, ASK)) for _ in range(10)]
    await eventually(lambda: sum(task.done() for task in tasks) == 7)
    assert gateway.dispatcher.open_now == 3
    for task in tasks:
        if task.done():
            answer = task.result()
            assert (answer.status, answer.error["type"]) == (429, "requests")
            assert "concurrent requests. Limit 3, used 3, requested 1." in answer.error["message"]
            assert 1 <= int(answer.headers["retry-after"]) <= 15
            assert answer.headers["x-should-retry"] == "true"
    go_on.set()
    assert sorted(answer.status for answer in await asyncio.gather(*tasks)) == [200] * 3 + [429] * 7
    again = await asyncio.gather(*(gateway.post(CHAT, ASK) for _ in range(3)))
    assert [answer.status for answer in again] == [200] * 3


async def test_a_spent_budget_is_insufficient_quota_and_no_matter_of_waiting(gateway: ScriptedGateway) -> None:
    allow(gateway, limit("day_tokens", PROMPT + 10))
    answer = await gateway.post(CHAT, ASK)
    assert (answer.status, answer.error["code"], answer.error["type"]) == (
        429,
        "insufficient_quota",
        "insufficient_quota",
    )
    assert f"Limit {PROMPT + 10}, used 0, requested {PROMPT + 20}." in answer.error["message"]
    assert (answer.headers["x-should-retry"], answer.headers.get("retry-after")) == ("false", None)


@pytest.mark.parametrize(
    "metric", ["requests", "tokens", "concurrency", "queued_requests", "queued_tokens", "day_tokens"]
)
async def test_zero_refuses_and_null_does_not(gateway: ScriptedGateway, metric: Metric) -> None:
    allow(gateway, limit(metric, 0))
    for _ in range(3):
        answer = await gateway.post(CHAT, ASK)
        assert (answer.status, answer.headers["x-should-retry"]) == (429, "false")
    allow(gateway, limit(metric, None))
    assert (await gateway.post(CHAT, ASK)).status == 200


async def test_shadow_limits_are_counted_and_refuse_nobody(gateway: ScriptedGateway) -> None:
    allow(gateway, limit("tokens", 1, enforced=False), limit("max_output", 5, enforced=False), limit("requests", 0))
    assert (await gateway.post(CHAT, ASK)).status == 429
    allow(gateway, limit("tokens", 1, enforced=False), limit("max_output", 5, enforced=False))
    assert (await gateway.post(CHAT, ASK)).status == 200
    told = gateway.services.metrics.exposition().decode()
    for line in (
        'forebay_limits_reached_total{metric="requests",mode="enforce"} 1.0',
        'forebay_limits_reached_total{metric="tokens",mode="shadow"} 1.0',
        'forebay_limits_reached_total{metric="max_output",mode="shadow"} 2.0',
    ):
        assert line in told


@pytest.mark.usefixtures("patient_limits")
async def test_a_refusal_from_memory_counts_shadow_limits_as_the_one_that_it_remembers(database_url: str) -> None:
    async with (
        pools.create(database_url, connections_max=4) as pool,
        PgLimiter(pool, gateway_id="gw", now_us=lambda: 0) as limiter,
        scripted_gateway(real_limiter=limiter) as gateway,
    ):
        limits = (limit("requests", 1), limit("tokens", 1, enforced=False))
        allow(gateway, *limits)
        assert (await gateway.post(CHAT, ASK)).status == 200
        assert (await gateway.post(CHAT, ASK)).status == 429
        assert limiter.refuses(limits, 980) is not None
        assert (await gateway.post(CHAT, ASK)).status == 429
        told = gateway.services.metrics.exposition().decode()
        assert 'forebay_limits_reached_total{metric="requests",mode="enforce"} 2.0' in told
        assert 'forebay_limits_reached_total{metric="tokens",mode="shadow"} 3.0' in told


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"max_tokens": None}, CONTEXT - PROMPT),
        ({"max_tokens": 7}, 7),
        ({"max_tokens": None, "max_completion_tokens": 9}, 9),
        ({"max_tokens": CONTEXT}, CONTEXT - PROMPT),
        ({"max_tokens": 5, "n": 3}, 15),
    ],
)
async def test_what_is_reserved_is_what_the_worker_may_write(fields: dict, output: int) -> None:
    async with scripted_gateway() as gateway:
        await gateway.post(CHAT, {**ASK, **fields})
        assert gateway.limiter.demands[-1].tokens == PROMPT + output
        sampling = gateway.play.job.sampling
        assert sampling.max_tokens * gateway.play.job.n == output


async def test_an_output_beyond_the_quota_names_the_field(gateway: ScriptedGateway) -> None:
    allow(gateway, limit("max_output", 10))
    answer = await gateway.post(CHAT, {**ASK, "max_tokens": 11})
    assert (answer.status, answer.error["param"]) == (400, "max_tokens")
    assert (await gateway.post(CHAT, {**ASK, "max_tokens": None})).status == 200
    assert gateway.play.job.sampling.max_tokens == 10
