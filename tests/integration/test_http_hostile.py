"""What a client can send wrong, over real HTTP: a precise 4xx, and nobody else notices."""

import asyncio
import gzip
import uuid
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.api.gate import UNREAD_SHARE
from tests.answers import Answer
from tests.scripted_gateway import AUTH, KEY, Caller, ScriptedGateway, eventually, scripted_gateway
from tests.tiny_model import MODEL

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    async with scripted_gateway(body_bytes_max=100_000) as running:
        yield running
        await eventually(lambda: running.services.gate.taken == 0)
        assert (await running.post(CHAT, ASK)).status == 200


async def raw(gateway: ScriptedGateway, head: str, body: bytes = b"") -> bytes:
    """The whole answer to a request written by hand."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head.replace("\n", "\r\n").encode("latin-1") + b"\r\n\r\n" + body)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        [""],
        [],
        [[]],
        ["ok", ""],
        [-1],
        [[-1]],
        [300],
        [1_000_000_000],
        [2**63 - 1],
        [1.5],
        [True],
        ["a", 1],
        [[1], [-7]],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_prompts_that_no_model_can_read(gateway: ScriptedGateway, prompt: object, stream: bool) -> None:
    answer = await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": prompt, "max_tokens": 3, "stream": stream})
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert not gateway.limiter.demands


async def test_prompts_at_the_edge_of_the_vocabulary(gateway: ScriptedGateway) -> None:
    assert (await gateway.post(COMPLETIONS, {"model": MODEL, "prompt": [299], "max_tokens": 3})).status == 200


@pytest.mark.parametrize("bias", [{"300": 1}, {"4000000000": 1}])
async def test_a_bias_for_a_token_that_does_not_exist(gateway: ScriptedGateway, bias: dict) -> None:
    answer = await gateway.post(CHAT, {**ASK, "logit_bias": bias})
    assert (answer.status, answer.error["param"]) == (400, "logit_bias")


async def test_empty_content_is_a_prompt(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(CHAT, {**ASK, "messages": [{"role": "user", "content": ""}]})
    assert answer.status == 200
    assert answer.json["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", "/v1/nothing", 404), ("POST", "/v1/models", 405), ("DELETE", CHAT, 405)],
)
async def test_routes_that_do_not_exist(gateway: ScriptedGateway, method: str, path: str, status: int) -> None:
    async with gateway.http.request(method, gateway.base + path, headers=AUTH) as response:
        answer = Answer(response.status, response.headers.copy(), await response.read())
    assert answer.status == status
    assert answer.error["type"] == "invalid_request_error"
    assert ("their base URL ends in /v1" in answer.error["message"]) == (status == 404)
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("media", ["multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/html"])
async def test_a_body_that_is_declared_to_be_something_else(gateway: ScriptedGateway, media: str) -> None:
    answer = await gateway.post(CHAT, ASK, headers={**AUTH, "content-type": media})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "br", "gzip, identity"])
async def test_a_body_that_is_compressed_is_told_so(gateway: ScriptedGateway, encoding: str) -> None:
    body = gzip.compress(msgspec.json.encode(ASK))
    answer = await gateway.post(CHAT, body, headers={**AUTH, "content-encoding": encoding})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert answer.headers["accept-encoding"] == "identity"
    assert (await gateway.post(CHAT, ASK, headers={**AUTH, "content-encoding": "Identity"})).status == 200


@pytest.mark.parametrize(("key", "length", "status"), [("nobody", 50, b" 401 "), (KEY, 50_000_000, b" 413 ")])
async def test_who_waits_to_send_is_told_the_refusal_and_not_to_send(
    gateway: ScriptedGateway, key: str, length: int, status: bytes
) -> None:
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {key}\nContent-Length: {length}"
    answer = await raw(gateway, f"{head}\nExpect: 100-continue")
    assert status in answer.split(b"\r\n")[0]
    assert b"connection: close" in answer


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"model":"tiny","messages":' + b"[" * 40_000 + b"]" * 40_000 + b"}"]
)
async def test_a_body_that_is_no_json(gateway: ScriptedGateway, body: bytes) -> None:
    answer = await gateway.post(CHAT, body)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_body_over_the_limit(gateway: ScriptedGateway, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.api.body.DISCARD_IDLE_S", 60)  # for a client that stands still while it sends
    answer = await gateway.post(path, b" " * 20_000_000)
    assert (answer.status, answer.error["code"]) == (413, "request_too_large")


async def test_a_body_over_the_limit_that_was_not_declared(gateway: ScriptedGateway) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 10_000

    headers = {**AUTH, "content-type": "application/json"}
    async with gateway.http.post(gateway.base + CHAT, data=parts(), headers=headers) as response:
        assert response.status == 413


async def test_a_body_that_never_ends() -> None:
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\nContent-Length: 50"
    async with scripted_gateway(body_s=0.3) as gateway:
        answer = await raw(gateway, head, b"{")
        assert b" 408 " in answer.split(b"\r\n")[0]
        await eventually(lambda: gateway.outcomes() == {"request_timeout": 1})


async def test_a_body_that_breaks_off_is_answered_by_a_status_of_http(gateway: ScriptedGateway) -> None:
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEY}\nTransfer-Encoding: chunked"
    answer = await raw(gateway, head, b"no length\r\n")
    assert b" 400 " in answer.split(b"\r\n")[0]
    assert b'"type":"invalid_request_error"' in answer
    await eventually(lambda: gateway.outcomes() == {"client_closed_request": 1})


async def test_a_client_that_leaves_within_its_body(gateway: ScriptedGateway) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(
        f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 50\r\n\r\n{{".encode()
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await eventually(lambda: gateway.outcomes() == {"client_closed_request": 1})


async def test_who_has_no_key_holds_neither_places_nor_connections_by_sending_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer nobody\nContent-Length: 50"
    asked = 0
    monkeypatch.setattr("gateway.api.body.DISCARD_IDLE_S", 60)
    async with scripted_gateway(requests_open_max=2) as gateway:
        resolve = gateway.principals.resolve

        async def counted(values: list[str]) -> Caller:
            nonlocal asked
            asked += 1
            return await resolve(values)

        monkeypatch.setattr(gateway.principals, "resolve", counted)
        waiting = [(await asyncio.open_connection("127.0.0.1", gateway.port))[1] for _ in range(2)]
        for writer in waiting:
            writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n{")
        await eventually(lambda: asked == 2)
        assert (await gateway.post(CHAT, ASK)).status == 200
        for writer in waiting:
            writer.close()
            await writer.wait_closed()
    monkeypatch.setattr("gateway.api.body.DISCARD_IDLE_S", 0.05)
    async with scripted_gateway() as gateway:
        answer = await raw(gateway, head, b"{")
        assert b" 401 " in answer.split(b"\r\n")[0]
        assert b"connection: close" in answer


async def test_connections_of_bodies_that_do_not_end_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server by itself keeps most of them for as long as their clients like."""
    monkeypatch.setattr("gateway.api.body.DISCARD_IDLE_S", 0.05)
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer nobody\nContent-Length: 50"
    async with scripted_gateway() as gateway:
        answers = await asyncio.gather(*(raw(gateway, head, b"{") for _ in range(20)))
    assert all(b" 401 " in answer.split(b"\r\n")[0] for answer in answers)


async def test_one_tenant_does_not_hold_all_places_by_sending_no_bodies() -> None:
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer hobby\nContent-Length: 500"
    async with scripted_gateway(requests_open_max=2 * UNREAD_SHARE) as gateway:
        gateway.principals.callers["hobby"] = Caller(tenant_id=uuid.UUID(int=9))
        waiting = [(await asyncio.open_connection("127.0.0.1", gateway.port))[1] for _ in range(2)]
        for writer in waiting:
            writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n{")
        await eventually(lambda: gateway.services.gate.taken == 2)
        for _ in range(2 * UNREAD_SHARE):
            refused = await gateway.post(CHAT, ASK, headers={"authorization": "Bearer hobby"})
            assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (429, "slow_down", "1")
        assert gateway.services.gate.taken == 2
        assert (await gateway.post(CHAT, ASK)).status == 200
        for writer in waiting:
            writer.close()
            await writer.wait_closed()
        await eventually(lambda: gateway.services.gate.taken == 0)
        assert (await gateway.post(CHAT, ASK, headers={"authorization": "Bearer hobby"})).status == 200


async def test_the_key_comes_before_the_body(gateway: ScriptedGateway) -> None:
    for headers in ({}, {"authorization": "Bearer nope"}):
        for body in (b"{", b" " * 200_000):
            answer = await gateway.post(CHAT, body, headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"


async def test_two_authorization_headers_are_refused_even_if_both_are_right(gateway: ScriptedGateway) -> None:
    for first, second in ((KEY, "nope"), ("nope", KEY), (KEY, KEY)):
        answer = await raw(
            gateway,
            "GET /v1/models HTTP/1.1\nHost: x\nConnection: close\n"
            f"Authorization: Bearer {first}\nAuthorization: Bearer {second}",
        )
        assert b" 401 " in answer.split(b"\r\n")[0]


@pytest.mark.parametrize("value", ["Bearer \xff\xfe", "Bearer " + "x" * 100_000, "Bearer"])
async def test_authorization_that_no_key_looks_like(gateway: ScriptedGateway, value: str) -> None:
    answer = await raw(gateway, f"GET /v1/models HTTP/1.1\nHost: x\nConnection: close\nAuthorization: {value}")
    assert int(answer.split()[1]) in (400, 401, 431)


async def test_an_id_of_the_client_is_not_ours(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(CHAT, ASK, headers={**AUTH, "x-request-id": "mine", "x-forebay-tenant": "other"})
    assert answer.headers["x-request-id"] != "mine"
    assert gateway.play.job.tenant == str(gateway.principals.callers[KEY].tenant_id)


async def test_long_names_are_not_echoed(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(CHAT, {**ASK, "model": "m" * 50_000})
    assert answer.status == 404
    assert len(answer.body) < 1_000
    unknown = await gateway.post(CHAT, {**ASK, "f" * 50_000: 1})
    assert unknown.status == 400
    assert len(unknown.body) < 2_000


async def test_more_requests_than_places() -> None:
    async with scripted_gateway(requests_open_max=1) as gateway:
        gateway.dispatcher.accept = asyncio.Event()
        first = asyncio.create_task(gateway.post(CHAT, ASK))
        await eventually(lambda: bool(gateway.dispatcher.plays))
        second = await gateway.post(CHAT, ASK)
        assert (second.status, second.error["code"]) == (503, "server_is_overloaded")
        assert second.headers["retry-after"] == "1"
        gateway.dispatcher.accept.set()
        assert (await first).status == 200


async def test_every_answer_is_valid_utf8(gateway: ScriptedGateway) -> None:
    answer = await gateway.post(CHAT, {**ASK, "model": "\U0001f44d\u0000\u2028"})
    assert answer.status == 404
    answer.body.decode()
    msgspec.json.decode(answer.body)
