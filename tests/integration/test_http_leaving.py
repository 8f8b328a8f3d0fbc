"""Clients that leave, stop reading, or are cut off, over real HTTP: their work ends and is settled."""

import asyncio
import socket
import struct

import aiohttp
import msgspec
import pytest

from gateway.api import exchange
from tests.scripted_gateway import AUTH, KEY, Play, ScriptedGateway, eventually, scripted_gateway
from tests.tiny_model import MODEL, chat_prompt_tokens

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 400}
PROMPT = chat_prompt_tokens("hi")


async def endless(play: Play) -> None:
    """Ten tokens at once, then silence until it is cancelled."""
    for _ in range(10):
        play.send(play.chunk("x"))
    await asyncio.Event().wait()


async def connect(gateway: ScriptedGateway, body: dict) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    data = msgspec.json.encode(body)
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


def hang_up(writer: asyncio.StreamWriter, how: str) -> None:
    if how == "rst":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_tokens_come(gateway: ScriptedGateway, stream: bool, how: str) -> None:
    gateway.dispatcher.script = endless
    reader, writer = await connect(gateway, {**ASK, "stream": stream})
    if stream:
        await reader.readuntil(b'"content":"x"')
    await eventually(lambda: bool(gateway.dispatcher.plays) and gateway.play.completion_tokens == 10)
    hang_up(writer, how)
    await eventually(lambda: bool(gateway.limiter.settled))
    assert gateway.play.cancelled
    assert [tokens for _, tokens in gateway.limiter.settled] == [PROMPT + 10]
    await eventually(lambda: gateway.outcomes() == {"client_closed_request": 1})


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_while_the_request_is_queued(gateway: ScriptedGateway, stream: bool, how: str) -> None:
    gateway.dispatcher.accept = asyncio.Event()
    _, writer = await connect(gateway, {**ASK, "stream": stream})
    await eventually(lambda: gateway.dispatcher.open_now == 1)
    hang_up(writer, how)
    await eventually(lambda: gateway.dispatcher.open_now == 0)
    await eventually(lambda: [tokens for _, tokens in gateway.limiter.settled] == [0])


async def test_leaving_while_the_limit_is_asked(gateway: ScriptedGateway) -> None:
    gateway.limiter.hold = asyncio.Event()
    _, writer = await connect(gateway, ASK)
    await eventually(lambda: bool(gateway.limiter.demands))
    writer.close()
    await eventually(lambda: [tokens for _, tokens in gateway.limiter.settled] == [0])
    assert not gateway.dispatcher.plays


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_first_token(gateway: ScriptedGateway, stream: bool) -> None:
    async def silent(_: Play) -> None:
        await asyncio.Event().wait()

    gateway.dispatcher.script = silent
    _, writer = await connect(gateway, {**ASK, "stream": stream})
    await eventually(lambda: gateway.dispatcher.open_now == 1)
    writer.close()
    await eventually(lambda: [tokens for _, tokens in gateway.limiter.settled] == [PROMPT])
    assert gateway.play.cancelled


async def test_many_leave_and_nothing_stays(gateway: ScriptedGateway) -> None:
    gateway.dispatcher.script = endless
    for number in range(50):
        _, writer = await connect(gateway, {**ASK, "stream": number % 2 == 0})
        await eventually(lambda: gateway.dispatcher.open_now == 1)
        hang_up(writer, "fin" if number % 4 < 2 else "rst")
        await eventually(lambda: gateway.dispatcher.open_now == 0)
    await eventually(lambda: gateway.services.gate.taken == 0)
    assert len(gateway.limiter.settled) == 50
    assert "forebay_streams_open 0.0" in gateway.services.metrics.exposition().decode()


async def test_a_client_that_stops_reading_is_cut_off() -> None:
    async with scripted_gateway(stall_s=0.4) as gateway:
        taken = 0

        async def flood(play: Play) -> None:
            nonlocal taken
            while True:
                play.send(play.chunk("x" * 100_000))
                taken += 1
                await asyncio.sleep(0)
                if taken > 2_000:
                    await asyncio.Event().wait()

        gateway.dispatcher.script = flood
        reader, writer = await connect(gateway, {**ASK, "stream": True})
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.pause_reading()
        await eventually(lambda: gateway.dispatcher.open_now == 0)
        assert gateway.play.cancelled
        await eventually(lambda: gateway.outcomes() == {"client_closed_request": 1})
        writer.transport.abort()


async def test_a_connection_is_kept_for_the_next_request_as_long_as_it_is_said() -> None:
    async with scripted_gateway(idle_s=0.2) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(2 * f"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode())
        try:
            async with asyncio.timeout(60):
                assert (await reader.read()).count(b"HTTP/1.1 200 OK") == 2
        finally:
            writer.close()


async def test_silence_is_filled_with_comments() -> None:
    async with scripted_gateway(keepalive_s=0.05) as gateway:
        go_on = asyncio.Event()

        async def pause(play: Play) -> None:
            play.send(play.chunk("Hello"))
            await go_on.wait()
            play.send(play.chunk(" world", finish="stop"))
            play.finish()

        gateway.dispatcher.script = pause
        async with gateway.http.post(gateway.base + CHAT, json={**ASK, "stream": True}, headers=AUTH) as response:
            seen = b""
            async with asyncio.timeout(60):
                while seen.count(b": keep-alive\n\n") < 3:
                    seen += await response.content.readany()
                go_on.set()
                seen += await response.content.read()
        assert seen.endswith(b"data: [DONE]\n\n")
        assert seen.count(b"data: ") == 5


async def test_headers_do_not_wait_for_ever_for_the_first_token(
    gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "FIRST_CHUNK_S", 0.05)
    first = asyncio.Event()

    async def late(play: Play) -> None:
        await first.wait()
        play.send(play.chunk("late", finish="stop"))
        play.finish()

    gateway.dispatcher.script = late
    async with gateway.http.post(gateway.base + CHAT, json={**ASK, "stream": True}, headers=AUTH) as response:
        assert response.status == 200
        first.set()
        assert b'"content":"late"' in await response.content.read()


async def test_tokens_leave_as_they_come(gateway: ScriptedGateway) -> None:
    step = asyncio.Event()

    async def stepwise(play: Play) -> None:
        for number in range(3):
            play.send(play.chunk(f"<{number}>", finish="stop" if number == 2 else None))
            await step.wait()
            step.clear()
        play.finish()

    gateway.dispatcher.script = stepwise
    async with gateway.http.post(gateway.base + CHAT, json={**ASK, "stream": True}, headers=AUTH) as response:
        seen = b""
        async with asyncio.timeout(60):
            for number in range(3):
                while f"<{number}>".encode() not in seen:
                    seen += await response.content.readany()
                assert f"<{number + 1}>".encode() not in seen
                step.set()
            seen += await response.content.read()
    assert seen.endswith(b"[DONE]\n\n")


async def test_a_closed_gate_lets_streams_finish(gateway: ScriptedGateway) -> None:
    go_on = asyncio.Event()

    async def slow(play: Play) -> None:
        play.send(play.chunk("Hello"))
        await go_on.wait()
        play.send(play.chunk(" world", finish="stop"))
        play.finish()

    gateway.dispatcher.script = slow
    running = asyncio.create_task(gateway.post(CHAT, {**ASK, "stream": True}))
    await eventually(lambda: gateway.dispatcher.open_now == 1)
    draining = asyncio.create_task(gateway.services.gate.drain(60))
    await eventually(lambda: gateway.services.gate.closed)
    refused = await gateway.post(CHAT, ASK)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    go_on.set()
    assert await draining
    assert (await running).body.endswith(b"[DONE]\n\n")


async def test_a_keep_alive_connection_serves_one_request_after_another(gateway: ScriptedGateway) -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as one:
        for number in range(6):
            body = {**ASK, "stream": number % 2 == 0}
            async with one.post(gateway.base + CHAT, json=body, headers=AUTH) as response:
                assert response.status == 200
                assert await response.read()
