"""An OpenAI-compatible server that answers at once: the server behind another gateway whose own work is measured.

An ASGI application for a server in the measuring environment. It reads only `max_tokens` and `stream`, and stores
nothing. Any GET is answered, so that callers can check whether it listens.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

TEXT: Final = " water"
PROMPT_TOKENS: Final = 16  # reported, not counted
_HEAD: Final = {"id": "chatcmpl-0", "created": 0, "model": "m"}


class Asked(msgspec.Struct, frozen=True):
    max_tokens: int = 1
    stream: bool = False


async def app(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    if scope["method"] == "GET":
        await _start(send, "text/plain")
        await _write(send, b"", more=False)
        return
    asked = msgspec.json.decode(await _body(receive), type=Asked)
    if asked.stream:
        await _stream(send, asked.max_tokens)
        return
    await _start(send, "application/json")
    await _write(send, _whole(asked.max_tokens), more=False)


async def _body(receive: Receive) -> bytes:
    data = b""
    while True:
        message = await receive()
        data += message.get("body", b"")
        if not message.get("more_body"):
            return data


async def _stream(send: Send, tokens: int) -> None:
    await _start(send, "text/event-stream")
    for _ in range(tokens):
        await _write(send, _event(delta={"content": TEXT}), more=True)
        await asyncio.sleep(0)  # yields to other streams, so that their tokens interleave
    await _write(send, _event(delta={}, finish="length") + _usage_event(tokens) + b"data: [DONE]\n\n", more=False)


async def _start(send: Send, media_type: str) -> None:
    headers = [(b"content-type", media_type.encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _write(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def _whole(tokens: int) -> bytes:
    message = {"role": "assistant", "content": TEXT * tokens}
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return msgspec.json.encode({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": _usage(tokens)})


def _event(*, delta: Message, finish: str | None = None) -> bytes:
    return _data({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _usage_event(tokens: int) -> bytes:
    return _data({"choices": [], "usage": _usage(tokens)})


def _data(fields: Message) -> bytes:
    return b"data: " + msgspec.json.encode({**_HEAD, "object": "chat.completion.chunk", **fields}) + b"\n\n"


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": tokens, "total_tokens": PROMPT_TOKENS + tokens}
