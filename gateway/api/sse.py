"""Server-sent events: sends bytes that are already encoded, as fast as the client reads them.

Owns a stream's two timeouts. After some silence on our side, a comment is sent. A client that reads nothing for a while
is cut off as if it had hung up, since a server that is blocked in `send` would not notice by itself.
"""

import asyncio
from time import monotonic
from typing import Final

from litestar.types import Send

from gateway.api.hangup import Hangup

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),  # a proxy that compresses holds events back
    (b"x-accel-buffering", b"no"),
]
KEEP_ALIVE: Final = b": keep-alive\n\n"


class EventStream:
    """One answer, from `start` to `end`. Call `close` in every case."""

    def __init__(self, send: Send, hangup: Hangup, *, keepalive_s: float, stall_s: float) -> None:
        self._send = send
        self._hangup = hangup
        self._keepalive_s = keepalive_s
        self._stall_s = stall_s
        self._sending = False
        self._last_s = monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    async def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        self._look()
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS + headers})

    async def put(self, data: bytes) -> None:
        await self._commented()
        await self._put(data)

    async def end(self, data: bytes) -> None:
        """The last `put`."""
        await self._commented()
        await self._put(data, more=False)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def _commented(self) -> None:
        if self._comment is not None:
            await self._comment
            self._comment = None

    async def _put(self, data: bytes, *, more: bool = True) -> None:
        self._sending = True
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        self._sending = False
        self._last_s = monotonic()

    def _look(self) -> None:
        """Checks a few times per timeout, so that no event needs a timer of its own."""
        silent_s = monotonic() - self._last_s
        if self._sending:
            if silent_s >= self._stall_s:
                self._hangup.cut_off()
                return
        elif silent_s >= self._keepalive_s:
            self._comment = asyncio.create_task(self._put(KEEP_ALIVE))
        look_s = min(self._keepalive_s, self._stall_s) / 4
        self._timer = asyncio.get_running_loop().call_later(look_s, self._look)
