"""The operators' port: metrics and health, plain HTTP/1.0 on asyncio, apart from the clients' server and its limits.

`/healthz/live` says that the event loop turns; `/healthz/ready` that a request would be served now: each check is a
name and an async function that raises, run under a deadline. What raises `Impaired` is told and does no harm to
readiness. Knows nothing of what it checks.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec

from shared import log

logger = log.get("gateway.ops")

Check = Callable[[], Awaitable[None]]

CHECK_S = 2.0
REQUEST_S = 5.0
CONNECTIONS_MAX = 64
REASON_CHARS_MAX = 200


class Impaired(Exception):
    """Raised by a check: something is not as it should be, and requests are served without it."""


class Readiness(msgspec.Struct, frozen=True):
    """The body of `/healthz/ready`; what is wrong and what is impaired are reasons by check."""

    ready: bool
    wrong: dict[str, str]
    impaired: dict[str, str]


class OpsServer:
    def __init__(self, metrics: Callable[[], bytes], checks: Mapping[str, Check]) -> None:
        self._metrics = metrics
        self._checks = checks
        self._connections = 0

    @asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncGenerator[int]:
        """Serve while entered; yields the port. Raises OSError when it cannot be bound."""
        server = await asyncio.start_server(self._serve, host, port)
        async with server:
            yield int(server.sockets[0].getsockname()[1])

    async def readiness(self) -> Readiness:
        errors = await asyncio.gather(*(self._run(check) for check in self._checks.values()))
        found = [(name, error) for name, error in zip(self._checks, errors, strict=True) if error is not None]
        wrong = {name: _reason(error) for name, error in found if not isinstance(error, Impaired)}
        impaired = {name: _reason(error) for name, error in found if isinstance(error, Impaired)}
        return Readiness(not wrong, wrong, impaired)

    async def _run(self, check: Check) -> Exception | None:
        try:
            async with asyncio.timeout(CHECK_S):
                await check()
        except Exception as error:  # noqa: BLE001  a check may fail in any way, and that is its answer
            return error
        return None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(REQUEST_S):
                if self._connections <= CONNECTIONS_MAX:
                    request = await reader.readuntil(b"\r\n\r\n")
                    response = await self._respond(request.split(b"\r\n", 1)[0])
                    if request.startswith(b"HEAD "):
                        response = response[: response.index(b"\r\n\r\n") + 4]
                    writer.write(response)
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            logger.debug("ops.connection_dropped")
        finally:
            self._connections -= 1
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _respond(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            return _response(405, b"Method Not Allowed", b"text/plain", b"GET only\n")
        if path == b"/metrics":
            return _response(200, b"OK", b"text/plain; version=0.0.4; charset=utf-8", self._metrics())
        if path == b"/healthz/live":
            return _response(200, b"OK", b"application/json", b'{"live":true}')
        if path == b"/healthz/ready":
            readiness = await self.readiness()
            body = msgspec.json.encode(readiness)
            if not readiness.ready:
                return _response(503, b"Service Unavailable", b"application/json", body)
            return _response(200, b"OK", b"application/json", body)
        return _response(404, b"Not Found", b"text/plain", b"/metrics, /healthz/live, /healthz/ready\n")


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CHECK_S:g} s"
    return str(error)[:REASON_CHARS_MAX] or type(error).__name__


def _response(status: int, reason: bytes, media_type: bytes, body: bytes) -> bytes:
    head = b"HTTP/1.0 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (status, reason, media_type, len(body)) + body
