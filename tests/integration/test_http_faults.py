"""Requests that are refused or break, over real HTTP: status, body and headers, and no stream that ends in silence."""

import msgspec
import openai
import pytest

from gateway.admission.limiter import Decision, LimitState
from gateway.errors import DeadlineExceeded, QueueFull, RequestFailed, Unavailable, WorkerLost
from tests.scripted_gateway import ADMIN_KEY, Play, ScriptedGateway, eventually
from tests.tiny_model import MODEL, chat_prompt_tokens

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


async def test_errors_as_the_official_client_sees_them(gateway: ScriptedGateway, client: openai.AsyncOpenAI) -> None:
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="nope", messages=messages)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as bad:
        await client.chat.completions.create(model=MODEL, messages=messages, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        await client.with_options(api_key="nope").models.list()
    with pytest.raises(openai.PermissionDeniedError):
        await client.with_options(api_key=ADMIN_KEY).chat.completions.create(model=MODEL, messages=messages)
    gateway.limiter.decision = Decision(
        refused=LimitState(metric="requests", limit=1, remaining=0), retry_after_ms=1_000
    )
    with pytest.raises(openai.RateLimitError) as limited:
        await client.chat.completions.create(model=MODEL, messages=messages)
    assert limited.value.type == "requests"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("The queue is full.", retry_after_ms=1_500), 429),
        (Unavailable("No worker.", retry_after_ms=2_000), 503),
        (DeadlineExceeded("Nobody could start it."), 504),
    ],
)
async def test_what_dispatch_refuses_costs_nothing_and_has_its_status(
    gateway: ScriptedGateway, stream: bool, error: Exception, status: int
) -> None:
    gateway.dispatcher.refuse = error
    answer = await gateway.post(CHAT, {**ASK, "stream": stream})
    assert answer.status == status
    assert answer.error["message"] == str(error)
    assert [tokens for _, tokens in gateway.limiter.settled] == [0]
    if status != 504:
        assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status"), [(WorkerLost("The worker was lost."), 502), (RequestFailed("NaN."), 500)])
async def test_an_attempt_that_breaks_before_its_first_token_has_a_status(
    gateway: ScriptedGateway, stream: bool, error: Exception, status: int
) -> None:
    async def breaks(play: Play) -> None:
        play.fail(error)

    gateway.dispatcher.script = breaks
    answer = await gateway.post(CHAT, {**ASK, "stream": stream})
    assert answer.status == status
    assert answer.error["code"] == error.code


async def test_an_answer_that_breaks_on_its_way(gateway: ScriptedGateway, client: openai.AsyncOpenAI) -> None:
    async def breaks(play: Play) -> None:
        play.send(play.chunk("He"))
        play.send(play.chunk("llo"))
        play.fail(WorkerLost("The worker was lost."))

    gateway.dispatcher.script = breaks
    answer = await gateway.post(CHAT, {**ASK, "stream": True, "stream_options": {"include_usage": True}})
    assert answer.status == 200
    *chunks, last = [msgspec.json.decode(event) for event in answer.events]
    assert last["error"] == {
        "message": "The worker was lost.",
        "type": "server_error",
        "param": None,
        "code": "worker_lost",
    }
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert b"[DONE]" not in answer.body
    assert [tokens for _, tokens in gateway.limiter.settled] == [chat_prompt_tokens("hi") + 2]
    assert (await gateway.post(CHAT, ASK)).status == 502
    stream = await client.chat.completions.create(model=MODEL, messages=ASK["messages"], stream=True)
    with pytest.raises(openai.APIError, match="lost"):
        async for _ in stream:
            pass
    await eventually(lambda: gateway.outcomes() == {"worker_lost": 3})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_end_that_left_choices_open_is_no_answer(gateway: ScriptedGateway, stream: bool) -> None:
    async def stops_early(play: Play) -> None:
        play.send(play.chunk("Hello", choice=0, finish="stop"), play.chunk("He", choice=1))
        play.finish()

    gateway.dispatcher.script = stops_early
    answer = await gateway.post(CHAT, {**ASK, "n": 2, "stream": stream})
    assert b'"engine_error"' in answer.body
    assert b"[DONE]" not in answer.body


async def test_a_fault_of_ours_says_nothing_about_itself(gateway: ScriptedGateway) -> None:
    gateway.limiter.decision = None  # no limiter does that
    answer = await gateway.post(CHAT, ASK)
    assert (answer.status, answer.error["type"]) == (500, "server_error")
    assert "NoneType" not in answer.error["message"]
    assert answer.headers["x-request-id"]


async def test_a_model_without_workers(gateway: ScriptedGateway) -> None:
    gateway.dispatcher.fleet.ready = []
    answer = await gateway.post(CHAT, ASK)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "2"
    assert (await gateway.get("/v1/models")).json["data"] == []
    assert (await gateway.get(f"/v1/models/{MODEL}")).status == 404
    assert (await gateway.post(CHAT, {**ASK, "model": "other"})).status == 503  # who knows what is about to start
