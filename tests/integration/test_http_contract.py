"""OpenAI's contract, line by line: what the official client makes of errors, and the bytes of a stream as they come."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import openai
import pytest

from gateway import errors
from gateway.errors import GatewayError
from shared import wire
from tests.answers import Answer
from tests.integration.test_http_hostile import raw
from tests.scripted_gateway import AUTH, KEY, Play, ScriptedGateway, eventually
from tests.tiny_model import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
BODIES = {CHAT: ASK, COMPLETIONS: {"model": MODEL, "prompt": "hi", "max_tokens": 8}}

SEEN_AS: list[tuple[GatewayError, type[openai.APIStatusError]]] = [
    (errors.InvalidRequest("x", param="n", code="invalid_value"), openai.BadRequestError),
    (errors.ContextTooLong("x", param="messages"), openai.BadRequestError),
    (errors.InvalidKey("x"), openai.AuthenticationError),
    (errors.Forbidden("x", code="account_suspended"), openai.PermissionDeniedError),
    (errors.ModelNotFound("x", param="model"), openai.NotFoundError),
    (errors.BodyTimeout("x"), openai.APIStatusError),
    (errors.Conflict("x", code="idempotency_conflict"), openai.ConflictError),
    (errors.BodyTooLarge("x"), openai.APIStatusError),
    (errors.UnsupportedMedia("x"), openai.APIStatusError),
    (errors.RateLimited("x", kind="tokens", retry_after_ms=5), openai.RateLimitError),
    (errors.BudgetExhausted("x"), openai.RateLimitError),
    (errors.QueueFull("x"), openai.RateLimitError),
    (errors.RequestFailed("x"), openai.InternalServerError),
    (errors.WorkerLost("x"), openai.InternalServerError),
    (errors.Unavailable("x"), openai.InternalServerError),
    (errors.DeadlineExceeded("x"), openai.InternalServerError),
]
HALVES = [  # of characters, within `user`, texts, and fields that are not looked into
    r'"user":"\ud83d"',
    r'"stop":["\ud83d"]',
    r'"metadata":{"a":"\ud83d"}',
    r'"metadata":{"a":"\ud83d then some"}',
    r'"response_format":{"a":{"name":"\udc4d"}}',
    r'"user":"\udc4d\ud83d there"',
    r'"\ud83d":1',
]
NO_HEADS = [
    "x-a: " + "a" * 1_000_000,
    "x-a: a\x00b",
    "x-a\x00: b",
    "x a: b",
    ": b",
    "x-a: b\n c: d",
    "x-a: b" + "\nx-b: c" * 500,
]


@pytest.fixture
async def client(gateway: ScriptedGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=gateway.base + "/v1", api_key=KEY, max_retries=0) as connected:
        yield connected


@pytest.fixture(params=[CHAT, COMPLETIONS])
def path(request: pytest.FixtureRequest) -> str:
    return request.param


def posted(path: str, body: object, *headers: str) -> tuple[str, bytes]:
    """The head and the body of a request, for a socket that is closed after its answer."""
    data = msgspec.json.encode(body)
    lines = (f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Authorization: Bearer {KEY}", *headers)
    return "\n".join([*lines, "Content-Type: application/json", f"Content-Length: {len(data)}"]), data


class TestErrors:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_each_is_the_official_client_s(
        self, gateway: ScriptedGateway, client: openai.AsyncOpenAI, stream: bool
    ) -> None:
        for error, expected in SEEN_AS:
            gateway.dispatcher.refuse = error
            with pytest.raises(openai.APIStatusError) as caught:
                await client.chat.completions.create(model=MODEL, messages=ASK["messages"], stream=stream)
            told = caught.value
            assert type(told) is expected
            assert (told.status_code, told.code) == (error.status, error.code)
            assert (told.param, told.type) == (error.param, error.type)
            assert told.request_id == gateway.play.job.request
            assert told.response.headers["content-type"] == "application/json"

    async def test_a_client_s_name_for_its_request_is_not_ours(self, gateway: ScriptedGateway) -> None:
        for headers in ({"x-request-id": "mine-1"}, {"x-request-id": "no good"}):
            answer = await gateway.post(CHAT, ASK, {**AUTH, **headers})
            assert answer.headers.getall("x-request-id") == [gateway.play.job.request]

    async def test_every_answer_tells_its_trace(self, gateway: ScriptedGateway) -> None:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        traced = {**AUTH, "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
        refused = await gateway.post(CHAT, b"{", traced)
        answers = [await gateway.post(CHAT, ASK, traced), await gateway.get("/v1/models", traced), refused]
        assert [(answer.status, answer.headers.getall("x-trace-id")) for answer in answers] == [
            (200, [trace]),
            (200, [trace]),
            (400, [trace]),
        ]
        own = [(await gateway.get("/nowhere")).headers["x-trace-id"] for _ in range(2)]
        assert len({trace, *own}) == 3

    async def test_one_of_ours_is_worth_another_try_if_nothing_is_paid_for(self, gateway: ScriptedGateway) -> None:
        gateway.limiter.decision = None  # no limiter does that
        first = await gateway.post(CHAT, ASK)
        again = await gateway.post(CHAT, ASK, {**AUTH, "x-stainless-retry-count": "1"})
        assert [(answer.status, answer.headers["x-should-retry"]) for answer in (first, again)] == [
            (500, "true"),
            (500, "false"),
        ]

    async def test_one_of_ours_is_not_paid_for_twice(self, gateway: ScriptedGateway) -> None:
        async def breaks(play: Play) -> None:
            play.send(play.chunk("x", choice=7))  # no worker does that

        gateway.dispatcher.script = breaks
        answer = await gateway.post(CHAT, ASK)
        assert (answer.status, answer.headers["x-should-retry"]) == (500, "false")
        assert [used for _, used in gateway.limiter.settled] != [0]

    async def test_the_engine_s_is_not_paid_for_twice(self, gateway: ScriptedGateway) -> None:
        async def breaks(play: Play) -> None:
            play.fail(errors.RequestFailed("NaN."))

        gateway.dispatcher.script = breaks
        async with openai.AsyncOpenAI(base_url=gateway.base + "/v1", api_key=KEY, max_retries=2) as client:
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(**ASK)
        assert len(gateway.jobs) == 1


class TestBodies:
    async def test_half_a_character_is_told_as_what_it_is(self, gateway: ScriptedGateway, path: str) -> None:
        for field in HALVES:
            body = msgspec.json.encode(BODIES[path])[:-1] + b"," + field.encode() + b"}"
            answer = await gateway.post(path, body)
            assert (answer.status, answer.error["code"]) == (400, "invalid_json"), field
            assert "half of a surrogate pair" in answer.error["message"]
        cut = await gateway.post(path, msgspec.json.encode(BODIES[path])[:-1])
        assert "truncated" in cut.error["message"]

    async def test_a_field_given_twice_is_its_last_everywhere(self, gateway: ScriptedGateway) -> None:
        body = (
            b'{"model":"nope","prompt":"x","model":"tiny","prompt":"xyz","max_tokens":200,"max_tokens":5,"n":9,"n":2}'
        )
        answer = await gateway.post(COMPLETIONS, body)
        assert (answer.status, answer.json["model"]) == (200, MODEL)
        assert answer.json["usage"]["prompt_tokens"] == 3
        assert gateway.limiter.demands[0].tokens == 3 + 2 * 5
        job = gateway.play.job
        assert (job.n, job.sampling.max_tokens, len(wire.unpack_ids(job.prompts[0]))) == (2, 5, 3)

    async def test_nesting_has_an_end_in_every_field(self, gateway: ScriptedGateway, path: str) -> None:
        for field in ("metadata", "response_format", "user", "logit_bias", "x"):
            body = msgspec.json.encode(BODIES[path])[:-1] + f',"{field}":{"[" * 50_000}{"]" * 50_000}}}'.encode()
            answer = await gateway.post(path, body)
            assert answer.status == 400, field
            assert "recursion" not in answer.error["message"].lower()

    async def test_a_null_character_is_a_character(self, gateway: ScriptedGateway) -> None:
        answer = await gateway.post(COMPLETIONS, {**BODIES[COMPLETIONS], "prompt": "a\x00b"})
        assert answer.json["usage"]["prompt_tokens"] == 3

    async def test_it_may_come_slowly_and_in_pieces(self, gateway: ScriptedGateway, path: str) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            data = msgspec.json.encode(BODIES[path])
            for start in range(0, len(data), 7):
                yield data[start : start + 7]
                await asyncio.sleep(0)

        headers = {**AUTH, "content-type": "application/json"}
        async with gateway.http.post(gateway.base + path, data=pieces(), headers=headers) as response:
            assert response.status == 200


class TestHeads:
    async def test_what_no_head_may_be_reaches_nobody(self, gateway: ScriptedGateway) -> None:
        for line in NO_HEADS:
            try:
                answer = await raw(gateway, *posted(CHAT, ASK, line))
            except ConnectionError:  # it was cut off while it still sent
                answer = b""
            assert not answer or int(answer.split()[1]) in (400, 431), line[:20]
            assert not gateway.dispatcher.plays
        assert (await gateway.post(CHAT, ASK)).status == 200

    async def test_two_lengths_smuggle_nothing(self, gateway: ScriptedGateway) -> None:
        for line in ("Content-Length: 3", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip, chunked"):
            head, data = posted(CHAT, ASK, line)
            answer = await raw(gateway, head, b"0\r\n\r\n" + data)
            assert answer.count(b"HTTP/1.1 ") == 1
            assert not gateway.dispatcher.plays


class TestStreams:
    async def test_the_bytes_of_one(self, gateway: ScriptedGateway, path: str) -> None:
        """Head, then one line of JSON an event, then the mark of the end, and nothing after it."""
        options = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}, "n": 2}
        answer = await raw(gateway, *posted(path, {**BODIES[path], **options}, "Accept-Encoding: gzip, br"))
        head, _, rest = answer.partition(b"\r\n\r\n")
        status, *lines = head.decode().lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert status == "http/1.1 200 ok"
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache, no-transform"
        assert headers["x-accel-buffering"] == "no"
        assert {"content-length", "content-encoding"}.isdisjoint(headers)
        assert headers["x-request-id"] == gateway.play.job.request
        text = dechunked(rest)
        assert b"\r" not in text
        *events, end, nothing = text.split(b"\n\n")
        assert (end, nothing) == (b"data: [DONE]", b"")
        assert all(event.startswith(b"data: {") and b"\n" not in event for event in events)
        chunks = [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]
        assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"] == []

    async def test_a_role_is_told_once_a_choice(self, gateway: ScriptedGateway) -> None:
        answer = await gateway.post(CHAT, {**ASK, "stream": True, "n": 3})
        choices = [choice for chunk in answer.chunks for choice in chunk["choices"]]
        for index in range(3):
            first, *middle, last = [choice for choice in choices if choice["index"] == index]
            assert first["delta"] == {"role": "assistant", "content": ""}
            assert all(choice["delta"].keys() == {"content"} and not choice["finish_reason"] for choice in middle)
            assert (last["delta"], last["finish_reason"]) == ({}, "stop")

    async def test_no_head_before_a_worker_has_accepted(self, gateway: ScriptedGateway) -> None:
        gateway.dispatcher.accept = asyncio.Event()
        gateway.dispatcher.refuse = errors.Unavailable("x", retry_after_ms=1_000)
        head, data = posted(CHAT, {**ASK, "stream": True})
        asked = asyncio.create_task(raw(gateway, head, data))
        await eventually(lambda: gateway.dispatcher.open_now == 1)
        assert not asked.done()
        gateway.dispatcher.accept.set()
        assert (await asked).startswith(b"HTTP/1.1 503 ")

    async def test_usage_adds_up(self, gateway: ScriptedGateway, path: str) -> None:
        async def say(play: Play) -> None:
            play.send(play.chunk("Hello", finish="length"))
            play.finish(cached=1)

        gateway.dispatcher.script = say
        usage = (await gateway.post(path, BODIES[path])).json["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert usage["prompt_tokens_details"] == {"cached_tokens": 1}
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 0}


class TestModels:
    async def test_the_official_client_s_errors(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            await client.models.retrieve("no/such:model")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        assert missing.value.request_id
        listed = await client.models.list()
        [model] = listed.data
        assert (listed.object, model.object, model.id) == ("list", "model", MODEL)
        assert isinstance(model.created, int)

    async def test_every_method_that_is_none_is_told(self, gateway: ScriptedGateway) -> None:
        for method, path in (("PUT", CHAT), ("GET", COMPLETIONS), ("PATCH", "/v1/models"), ("DELETE", "/v1/models/x")):
            async with gateway.http.request(method, gateway.base + path, headers=AUTH) as response:
                answer = Answer(response.status, response.headers.copy(), await response.read())
            assert (answer.status, answer.error["type"]) == (405, "invalid_request_error")
            assert answer.headers["allow"]
            assert answer.headers["x-request-id"]

    @pytest.mark.parametrize("body", [ASK, {**ASK, "stream": True}, {**ASK, "n": 0}])
    async def test_a_slash_too_many_changes_nothing(self, gateway: ScriptedGateway, body: dict) -> None:
        plain, other = await gateway.post(CHAT, body), await gateway.post(f"/{CHAT}/", body)
        assert (other.status, set(other.headers)) == (plain.status, set(plain.headers))
        assert len(other.headers.getall("x-request-id")) == len(other.headers.getall("x-trace-id")) == 1


def dechunked(body: bytes) -> bytes:
    """What a body with `Transfer-Encoding: chunked` says; one that ends with its connection says itself."""
    parts: list[bytes] = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        parts.append(body[:length])
        assert body[length : length + 2] == b"\r\n"
        body = body[length + 2 :]
        if not length:
            assert not body
    return b"".join(parts)
