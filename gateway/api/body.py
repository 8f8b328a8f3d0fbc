"""Reading and decoding a request's body: bounded in bytes, time and nesting; every fault is a GatewayError.

A request may be refused before its body has arrived. The rest of the body is then read and discarded for a while, in
constant memory: most clients do not read an answer before they have sent everything, and a connection with an unread
body would be closed under the client's next request. A client that waits for permission to send (`Expect:
100-continue`) gets the refusal instead.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from litestar.types import Receive, Scope

from gateway import headers
from gateway.api.connections import Connections
from gateway.errors import BodyTimeout, BodyTooLarge, ClientGone, GatewayError, InvalidRequest, UnsupportedMedia

T = TypeVar("T")

DISCARD_BYTES_MAX = 64 * 1024 * 1024
DISCARD_S = 10.0
DISCARD_IDLE_S = 2.0  # without a byte: a client without a key must not hold connections by sending nothing
MESSAGE_CHARS_MAX = 300
HALF_A_PAIR = "it has half of a surrogate pair (\\ud800 to \\udfff), which is no character"
# msgspec's messages for it, in fields that it reads and in fields that it skips.
HALF_A_PAIR_FAULTS = ("surrogate pair", "end of hex escape")
TRUNCATED = "Input data was truncated"
ROOM = b" " * 8  # lets msgspec distinguish half a surrogate pair near the end of a body from a truncated body
ASKED_FOR = "forebay.body_asked_for"  # key in a scope: the client may have begun to send the body
ENCODINGS = ("", "identity")
MEDIA_TYPES = ("", "application/json", "application/octet-stream", "text/plain")

_AT_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:required|unknown) field `(?P<field>.*)`", re.DOTALL)


async def read(scope: Scope, receive: Receive, *, bytes_max: int, seconds: float) -> bytes:
    """The whole body. Raises UnsupportedMedia, BodyTooLarge, BodyTimeout, ClientGone."""
    media = headers.first(scope, b"content-type").partition(";")[0].strip().lower()
    if media not in MEDIA_TYPES and not media.endswith("+json"):
        raise UnsupportedMedia("The body must be JSON: send Content-Type: application/json.")
    if headers.first(scope, b"content-encoding").strip().lower() not in ENCODINGS:
        message = "The body must not be compressed: send it without Content-Encoding."
        raise UnsupportedMedia(message, headers={"accept-encoding": "identity"})
    declared = headers.first(scope, b"content-length")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise _too_large(bytes_max)
    scope[ASKED_FOR] = True  # pyright: ignore[reportGeneralTypeIssues] (a key of our own beside ASGI's)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(seconds):
            while more and declared != str(size):  # with a declared length, the final empty message need not be awaited
                part, more = await _part(receive)
                parts.append(part)
                size += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
    except TimeoutError:
        raise BodyTimeout(f"The body did not arrive within {seconds:g} seconds.") from None
    return parts[0] if len(parts) == 1 else b"".join(parts)


async def refuse(scope: Scope, receive: Receive, error: GatewayError, connections: Connections) -> None:
    """Discard the rest of the body of a request that `error` refuses. The connection is closed if the body does not
    end, or if the client still waits for permission to send it.
    """
    if isinstance(error, BodyTimeout) or _waits_to_send(scope) or not await _discard(receive):
        error.headers["connection"] = "close"
        connections.end_soon(scope["client"])


async def _discard(receive: Receive) -> bool:
    """Read the rest of the body and drop it. False if it did not end within DISCARD_S and DISCARD_BYTES_MAX, or paused
    for DISCARD_IDLE_S.
    """
    size, more = 0, True
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(DISCARD_S), asyncio.timeout(DISCARD_IDLE_S) as idle:
            while more and size <= DISCARD_BYTES_MAX:
                part, more = await _part(receive)
                idle.reschedule(now() + DISCARD_IDLE_S)
                size += len(part)
    except TimeoutError:
        return False
    return not more


def decode_query(pairs: Iterable[tuple[str, str]], kind: type[T]) -> T:
    """The parameters of a query as a Struct. Raises InvalidRequest whose `param` is the one at fault."""
    values: dict[str, str] = {}
    for name, value in pairs:
        if name in values:
            raise InvalidRequest(f"{_short(name)}: given twice.", param=_short(name))
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None


def decode(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    """`body` as the decoder's type. Raises InvalidRequest whose `param` is the field at fault. If a field is given
    twice, the last one counts.
    """
    try:
        return _decoded(body, decoder)
    except msgspec.ValidationError as error:
        raise _invalid_field(str(error)) from None
    except RecursionError:
        raise InvalidRequest("The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = "not valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        if any(fault in detail for fault in HALF_A_PAIR_FAULTS):
            detail = HALF_A_PAIR
        raise InvalidRequest(f"The body is not valid JSON: {_short(detail)}.", code="invalid_json") from None


def _decoded(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T:
    # msgspec does not check the encoding of fields of type Raw. Here one rule holds for all fields.
    data = body if body.isascii() else body.decode()
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as error:
        if str(error) != TRUNCATED:
            raise
        return decoder.decode(body + ROOM)


def _invalid_field(detail: str) -> InvalidRequest:
    at = _AT_PATH.search(detail)
    path = at["path"] if at else ""
    fault = detail[: at.start()] if at else detail
    if field := _FIELD.search(fault):
        path = f"{path}.{field['field']}" if path else field["field"]
    param = path if path.startswith("messages") else re.split(r"[.\[]", path)[0]
    code = "unknown_parameter" if "unknown field" in detail else None
    message = f"{_short(path)}: {_short(fault)}." if path else f"{_short(fault)}."
    return InvalidRequest(message, param=_short(param) or None, code=code)


def _short(text: str) -> str:
    return text if len(text) <= MESSAGE_CHARS_MAX else text[:MESSAGE_CHARS_MAX] + "…"


def _waits_to_send(scope: Scope) -> bool:
    return ASKED_FOR not in scope and headers.first(scope, b"expect").strip().lower() == "100-continue"


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """The next part of the body, and whether more follows. Raises ClientGone."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone("The client closed the connection before it had sent its body.")
    assert message["type"] == "http.request"
    return message.get("body", b""), message.get("more_body", False)


def _too_large(bytes_max: int) -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than the {bytes_max} bytes that this server accepts.")
