"""Answers over real HTTP: their shapes, their headers, and what the official client makes of them."""

import asyncio
import uuid

import msgspec
import openai
import pytest

from gateway.admission.limiter import Decision, LimitState
from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, Unavailable, WorkerLost
from shared import wire
from tests.demands import limit
from tests.scripted_gateway import AUTH, KEY, Caller, Play, ScriptedGateway, eventually
from tests.tiny_model import CONTEXT, MODEL, MODEL_ID, chat_prompt_tokens

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


async def test_the_first_token_comes_with_the_first_event(gateway: ScriptedGateway) -> None:
    """Each write is a chunk of HTTP. Apart, each would cost the first token another turn of the server's threads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    body = msgspec.json.encode({**ASK, "stream": True})
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    async with asyncio.timeout(60):
        await reader.readuntil(b"\r\n\r\n")
        first = await reader.readexactly(int(await reader.readline(), 16))
        rest = await reader.readuntil(b"\r\n0\r\n\r\n")
    writer.close()
    assert first.count(b"data: ") == 2
    assert b'"role":"assistant"' in first.split(b"\n\n")[0]
    assert b'"content":"Hello"' in first.split(b"\n\n")[1]
    assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_chat_answer_has_openais_fields(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(CHAT, ASK)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    request_id = answer.headers["x-request-id"]
    assert uuid.UUID(request_id).version == 7
    assert answer.json["created"] > 1_700_000_000
    assert {**answer.json, "created": 0} == {
        "id": f"chatcmpl-{request_id}",
        "object": "chat.completion",
        "created": 0,
        "model": MODEL,
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello world", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": chat_prompt_tokens("hi"),
            "completion_tokens": 2,
            "total_tokens": chat_prompt_tokens("hi") + 2,
            "prompt_tokens_details": {"cached_tokens": 0},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }
    assert gateway.limiter.settled == [(uuid.UUID(request_id), chat_prompt_tokens("hi") + 2)]


async def test_a_chat_stream_has_openais_events_and_is_not_held_back(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(CHAT, {**ASK, "stream": True})
    assert answer.headers["cache-control"] == "no-cache, no-transform"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers
    first, hello, world, last = answer.chunks
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert hello["choices"][0]["delta"] == {"content": "Hello"}
    assert world["choices"][0]["delta"] == {"content": " world"}
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in answer.chunks}) == 1
    assert first["object"] == "chat.completion.chunk"
    assert all("usage" not in chunk for chunk in answer.chunks)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_no_usage_unless_asked(gateway: ScriptedGateway, path: str, options: object) -> None:
    prompt = {"prompt": "x"} if path == COMPLETIONS else {"messages": ASK["messages"]}
    answer = await gateway.post(path, {"model": MODEL, **prompt, "stream": True, "stream_options": options, "n": 2})
    assert all("usage" not in chunk for chunk in answer.chunks)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_usage_at_the_end_of_a_stream(gateway: ScriptedGateway, path: str) -> None:
    prompt = {"prompt": "x" * 20} if path == COMPLETIONS else {"messages": ASK["messages"]}
    body = {"model": MODEL, **prompt, "n": 2, "max_tokens": 5, "stream": True}
    *chunks, last = (await gateway.post(path, {**body, "stream_options": {"include_usage": True}})).chunks
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 20  # once, whatever n
    assert last["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks)
    finishes = [
        (choice["index"], choice["finish_reason"])
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["finish_reason"]
    ]
    assert sorted(finishes) == [(0, "stop"), (1, "stop")]


async def test_a_completion_with_several_prompts(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": [[1, 2, 3], [4, 5]], "max_tokens": 3})
    assert answer.json["object"] == "text_completion"
    assert answer.json["id"].startswith("cmpl-")
    assert [(choice["index"], choice["text"]) for choice in answer.json["choices"]] == [
        (0, "Hello world"),
        (1, "Hello world"),
    ]
    assert answer.json["usage"]["prompt_tokens"] == 5
    assert [wire.unpack_ids(prompt) for prompt in gateway.play.job.prompts] == [[1, 2, 3], [4, 5]]


async def test_a_completion_stream_ends_with_its_finish_reason(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x", "stream": True})
    assert [chunk["choices"][0]["text"] for chunk in answer.chunks] == ["Hello", " world"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in answer.chunks] == [None, "stop"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_streamed_text_is_the_whole_text(gateway: ScriptedGateway, path: str) -> None:
    pieces = ["", 'quote " and \\', "\n\u2028", "👩‍👩‍👧", "ไทย", "", "\ufffd", " e\u0301", "</s>"]

    async def say(play: Play) -> None:
        for piece in pieces:
            play.send(play.chunk(piece))
        play.send(play.chunk("end", finish="length"))
        play.finish()

    gateway.dispatcher.script = say
    prompt = {"prompt": "x"} if path == COMPLETIONS else {"messages": ASK["messages"]}
    whole = (await gateway.post(path, {"model": MODEL, **prompt})).json
    chunks = (await gateway.post(path, {"model": MODEL, **prompt, "stream": True})).chunks
    [choice] = whole["choices"]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    deltas = [chunk["choices"][0] for chunk in chunks]
    streamed = "".join(delta["text"] if path == COMPLETIONS else delta["delta"].get("content", "") for delta in deltas)
    assert streamed == text == "".join(pieces) + "end"
    assert [delta["finish_reason"] for delta in deltas if delta["finish_reason"]] == ["length"]


async def test_chat_logprobs_come_with_their_bytes_and_alternatives(gateway: ScriptedGateway) -> None:
    asked = {**ASK, "logprobs": True, "top_logprobs": 2}
    [choice] = (await gateway.post(CHAT, asked)).json["choices"]
    first = choice["logprobs"]["content"][0]
    assert {name: first[name] for name in ("token", "logprob", "bytes")} == {
        "token": "Hello",
        "logprob": -0.5,
        "bytes": list(b"Hello"),
    }
    assert first["top_logprobs"][1] == {"token": "\ufffd", "logprob": -9999.0, "bytes": [255]}
    chunks = (await gateway.post(CHAT, {**asked, "stream": True})).chunks
    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry["content"][0]["token"] for entry in logprobs if entry] == ["Hello", " world"]
    assert gateway.play.job.sampling.logprobs == 2


async def test_completion_logprobs_say_where_in_the_text_they_stand(gateway: ScriptedGateway) -> None:
    [choice] = (await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x", "logprobs": 1})).json["choices"]
    assert choice["logprobs"]["tokens"] == ["Hello", " world"]
    assert choice["logprobs"]["token_logprobs"] == [-0.5, -0.5]
    assert choice["logprobs"]["text_offset"] == [0, 5]
    chunks = (await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x", "logprobs": 1, "stream": True})).chunks
    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0], [5]]


async def test_a_job_says_all_that_was_asked(gateway: ScriptedGateway) -> None:
    asked = {
        **ASK,
        "n": 2,
        "temperature": 0,
        "top_p": 0.5,
        "seed": -1,
        "stop": ["a"],
        "ignore_eos": True,
        "logit_bias": {"5": 100},
    }
    answer = await gateway.post(CHAT, asked)
    job = gateway.play.job
    assert job.request == answer.headers["x-request-id"]
    assert (job.attempt, job.gateway, job.model, job.card, job.tier, job.n) == (
        1,
        "gw-test",
        str(MODEL_ID),
        "digest",
        0,
        2,
    )
    assert job.sampling == wire.Sampling(
        max_tokens=8, temperature=0, top_p=0.5, seed=2**64 - 1, stop=("a",), ignore_eos=True, logit_bias=((5, 100.0),)
    )
    assert gateway.limiter.demands[0].tokens == chat_prompt_tokens("hi") + 2 * 8
    await gateway.post(CHAT, ASK)
    await gateway.post(CHAT, ASK)
    seeds = [play.job.sampling.seed for play in gateway.dispatcher.plays[1:]]
    assert seeds[0] != seeds[1]  # drawn for each request
    assert len({play.job.cache_salt for play in gateway.dispatcher.plays}) == 1


async def test_absent_max_tokens_is_the_default_cut_to_the_context(gateway: ScriptedGateway) -> None:
    await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * 100})
    assert gateway.play.job.sampling.max_tokens == CONTEXT - 100
    await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x", "max_tokens": None})
    assert gateway.play.job.sampling.max_tokens == CONTEXT - 1


@pytest.mark.parametrize("maximum", [CONTEXT - 100, CONTEXT - 99, CONTEXT])
async def test_output_is_cut_to_the_room_that_the_prompt_leaves(gateway: ScriptedGateway, maximum: int) -> None:
    answer = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * 100, "max_tokens": maximum})
    assert answer.status == 200
    assert gateway.play.job.sampling.max_tokens == CONTEXT - 100


@pytest.mark.parametrize("maximum", [CONTEXT + 1, 2_147_483_648, 9_223_372_036_854_775_808])
async def test_more_output_than_any_prompt_leaves_room_for(gateway: ScriptedGateway, maximum: int) -> None:
    answer = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * 100, "max_tokens": maximum})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "context_length_exceeded",
        "max_tokens",
    )
    for told in (str(CONTEXT), str(maximum)):
        assert told in answer.error["message"]
    assert not gateway.limiter.demands


async def test_a_prompt_over_the_context(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * (CONTEXT + 50)})
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", "prompt")
    assert str(CONTEXT) in answer.error["message"]
    assert str(CONTEXT + 50) in answer.error["message"]
    exact = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * (CONTEXT - 1), "max_tokens": 1})
    assert exact.status == 200


async def test_a_tenants_own_context_limit(gateway: ScriptedGateway) -> None:
    gateway.principals.callers[KEY] = Caller(limits=(limit("max_context", 50), limit("max_context", 500)))
    assert (await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * 50})).status == 400
    await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": "x" * 40})
    assert gateway.play.job.sampling.max_tokens == 10


async def test_every_answer_says_what_is_left_of_the_limits(gateway: ScriptedGateway) -> None:
    for stream in (False, True):
        answer = await gateway.post(CHAT, {**ASK, "stream": stream})
        assert answer.headers["x-ratelimit-limit-tokens"] == "9000"
        assert answer.headers["x-ratelimit-remaining-tokens"] == "8000"
        assert answer.headers["x-ratelimit-reset-tokens"] == "6.5s"
        assert answer.headers["x-ratelimit-remaining-requests"] == "59"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("wait_ms", "seconds", "retry"), [(36_200, "37", "true"), (1, "1", "true"), (None, None, "false")]
)
async def test_a_refusal_by_a_limit_says_whether_and_when_to_retry(
    gateway: ScriptedGateway, stream: bool, wait_ms: int | None, seconds: str | None, retry: str
) -> None:
    bucket = LimitState(metric="tokens", limit=100, remaining=20, reset_ms=48_000)
    gateway.limiter.decision = Decision(refused=bucket, retry_after_ms=wait_ms, states=(bucket,))
    answer = await gateway.post(CHAT, {**ASK, "stream": stream})
    assert answer.status == 429
    assert (answer.error["code"], answer.error["type"]) == ("rate_limit_exceeded", "tokens")
    assert answer.headers.get("retry-after") == seconds
    assert answer.headers.get("retry-after-ms") == (None if wait_ms is None else str(wait_ms))
    assert answer.headers["x-should-retry"] == retry
    assert answer.headers["x-ratelimit-remaining-tokens"] == "20"
    assert not gateway.dispatcher.plays


async def test_the_official_client_reads_every_kind_of_answer(
    gateway: ScriptedGateway, client: openai.AsyncOpenAI
) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], n=2)
    assert [choice.message.content for choice in whole.choices] == ["Hello world"] * 2
    assert whole._request_id == gateway.play.job.request
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        stream_options={"include_usage": True},
        n=2,
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].usage
    assert chunks[-1].usage.completion_tokens == 4
    text = await client.completions.create(model=MODEL, prompt="x", logprobs=1)
    assert text.choices[0].text == "Hello world"
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "forebay"


async def test_each_request_is_counted_once_by_its_outcome(gateway: ScriptedGateway) -> None:
    await gateway.post(CHAT, ASK)
    await gateway.post(CHAT, {**ASK, "stream": True})
    await gateway.post(CHAT, {**ASK, "model": "nope"})
    await gateway.post(CHAT, ASK, headers={})
    await eventually(lambda: gateway.services.gate.taken == 0)
    assert gateway.outcomes() == {"ok": 2, "model_not_found": 1, "invalid_api_key": 1}
    text = gateway.services.metrics.exposition().decode()
    assert 'forebay_requests_total{model="tiny",outcome="ok"} 2.0' in text
    assert 'model="nope"' not in text  # a client's text is no label
    assert "forebay_ttft_seconds_count 2.0" in text
    assert "forebay_itl_seconds_count 1.0" in text  # of the stream: a whole answer has one delivery
    assert "forebay_streams_open 0.0" in text
    assert "forebay_requests_open 0.0" in text


async def test_a_client_shortens_its_own_wait_by_its_timeout(gateway: ScriptedGateway) -> None:
    hasty = openai.AsyncOpenAI(base_url=gateway.base + "/v1", api_key=KEY, timeout=50, max_retries=0)
    async with hasty as client:
        await client.chat.completions.create(**ASK)
    assert 10_000 < gateway.jobs[-1].wait_ms <= 50_000  # without it, 60 s
    [terms] = gateway.dispatcher.terms
    assert terms.client_s is not None
    assert 10 < terms.client_s <= 50
    assert not terms.retry


async def test_what_a_client_says_of_its_patience_is_hearsay(gateway: ScriptedGateway) -> None:
    for said in ("", "nan", "-5", "1e400", "soon", "9" * 5_000):
        headers = {**AUTH, "x-stainless-read-timeout": said, "x-stainless-retry-count": said}
        assert (await gateway.post(CHAT, ASK, headers)).status == 200
    assert {job.wait_ms for job in gateway.jobs} == {60_000}
    assert {(terms.client_s, terms.retry) for terms in gateway.dispatcher.terms} == {(None, False)}


@pytest.mark.parametrize(
    ("error", "status", "retry", "after"),
    [
        (QueueFull("x", retry_after_ms=1_250), 429, "true", ("2", "1250")),
        (QueueFull("x", retry_after_ms=900, retry=False), 429, "false", ("1", "900")),
        (Unavailable("x", retry_after_ms=250), 503, "true", ("1", "250")),
        (DeadlineExceeded("x", retry_after_ms=61_000), 504, "true", ("61", "61000")),
        (WorkerLost("x", retry=True), 502, "true", None),
        (WorkerLost("x", retry=False), 502, "false", None),
    ],
)
async def test_each_refusal_says_whether_and_when_to_come_back(
    gateway: ScriptedGateway, error: GatewayError, status: int, retry: str, after: tuple[str, str] | None
) -> None:
    gateway.dispatcher.refuse = error
    answer = await gateway.post(CHAT, ASK)
    assert (answer.status, answer.error["code"]) == (status, error.code)
    assert answer.headers["x-should-retry"] == retry
    told = answer.headers.get("retry-after"), answer.headers.get("retry-after-ms")
    assert told == (after or (None, None))
    assert [used for _, used in gateway.limiter.settled] == [0], "not refunded once"


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (WorkerLost("x", retry=False), [False]),
        (QueueFull("x", retry_after_ms=1, retry=False), [False]),
        (QueueFull("x", retry_after_ms=1), [False, True, True]),
        (Unavailable("x", retry_after_ms=1), [False, True, True]),
    ],
)
async def test_the_official_client_does_as_it_is_told(
    gateway: ScriptedGateway, error: GatewayError, tries: list[bool]
) -> None:
    gateway.dispatcher.refuse = error
    async with openai.AsyncOpenAI(base_url=gateway.base + "/v1", api_key=KEY, max_retries=2) as client:
        with pytest.raises(openai.APIStatusError):
            await client.chat.completions.create(**ASK)
    assert [terms.retry for terms in gateway.dispatcher.terms] == tries
    [counted] = gateway.services.metrics.client_retries.collect()
    assert sum(sample.value for sample in counted.samples if sample.name.endswith("_total")) == sum(tries)
