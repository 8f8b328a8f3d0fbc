"""A response of server-sent events: bytes that somebody else encodes, sent as fast as the client takes them.

Invariant: however the response ends (sent, client gone, client stalled, server cancelled), the iterator has been
closed and its owner left before the response returns. Litestar alone closes neither when it is blocked in `send`.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, suppress
from time import monotonic
from typing import Any

from litestar import Response
from litestar.response.base import ASGIResponse
from litestar.types import Receive, Scope, Send

from gateway.api.hangup import Hangup
from gateway.errors import ClientGone

HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
KEEP_ALIVE = b": keep-alive\n\n"


class EventStream(Response[bytes]):
    """`owner` is closed last, also when sending never began; `hangup` tells that the client is gone."""

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        owner: AsyncExitStack,
        hangup: Hangup,
        headers: dict[str, str],
        keepalive_s: float,
        stall_s: float,
    ) -> None:
        super().__init__(b"", media_type="text/event-stream", headers={**HEADERS, **headers}, status_code=200)
        self._answer = _EventStream(
            events, owner=owner, hangup=hangup, headers=self.headers, keepalive_s=keepalive_s, stall_s=stall_s
        )

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        return self._answer


class _EventStream(ASGIResponse):
    _should_set_content_length = False

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        owner: AsyncExitStack,
        hangup: Hangup,
        headers: dict[str, Any],
        keepalive_s: float,
        stall_s: float,
    ) -> None:
        super().__init__(headers=headers, media_type="text/event-stream")
        self._events = events
        self._owner = owner
        self._hangup = hangup
        self._keepalive_s = keepalive_s
        self._stall_s = stall_s
        self._sending = False
        self._last_s = monotonic()
        self._stalled = False
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002
        task = asyncio.current_task()
        assert task is not None
        try:
            with suppress(ClientGone), self._hangup.cancels():
                self._look(send, task)
                await self.start_response(send)
                async for data in self._events:
                    if self._comment is not None:
                        await self._comment
                        self._comment = None
                    await self._send(send, data)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not self._stalled or task.uncancel():
                raise
        finally:
            await self._close()

    async def _send(self, send: Send, data: bytes) -> None:
        self._sending = True
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sending = False
        self._last_s = monotonic()

    def _look(self, send: Send, task: "asyncio.Task[Any]") -> None:
        """Keep an idle stream alive and cut off one whose client takes nothing, looking a few times in each interval.

        So there is no timer for each event.
        """
        silent_s = monotonic() - self._last_s
        if self._sending:
            if silent_s >= self._stall_s:
                self._stalled = True
                task.cancel()
                return
        elif silent_s >= self._keepalive_s:
            self._comment = asyncio.create_task(self._send(send, KEEP_ALIVE))
        look_s = min(self._keepalive_s, self._stall_s) / 4
        self._timer = asyncio.get_running_loop().call_later(look_s, self._look, send, task)

    async def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
        await self._events.aclose()
        await self._owner.aclose()
