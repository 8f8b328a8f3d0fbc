"""Reading and decoding a request's body: bounded in bytes, time and nesting; every fault is a GatewayError.

A request may be refused before its body has arrived. What the client is still sending is then read and thrown away
for a while, in constant memory: most clients read no answer before they have sent everything, and a connection whose
body was left lying is closed under the client's next request. Who waits to be told to send it (`Expect: 100-continue`)
is told the refusal instead.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from litestar import Request

from gateway import headers
from gateway.errors import BodyTimeout, BodyTooLarge, ClientGone, GatewayError, InvalidRequest, UnsupportedMedia

T = TypeVar("T")

DISCARD_BYTES_MAX = 64 * 1024 * 1024
DISCARD_S = 10.0
DISCARD_IDLE_S = 2.0  # without a byte: whoever has no key must not hold connections by sending nothing
MESSAGE_CHARS_MAX = 300
HALF_A_PAIR = "it has half of a surrogate pair (\\ud800 to \\udfff), which is no character"
HALF_A_PAIR_FAULTS = (
    "surrogate pair",
    "end of hex escape",
)  # msgspec's words for it, in fields that it reads and skips
TRUNCATED = "Input data was truncated"
ROOM = b" " * 8  # with which msgspec tells half a pair near the end of a body from a body that ends too early
ASKED_FOR = "body_asked_for"  # a request's state: its client may have begun to send the body
ENCODINGS = ("", "identity")
MEDIA_TYPES = ("", "application/json", "application/octet-stream", "text/plain")

_AT_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$", re.DOTALL)
_FIELD = re.compile(r"(?:required|unknown) field `(?P<field>.*)`", re.DOTALL)


async def read(request: Request[Any, Any, Any], *, bytes_max: int, seconds: float) -> bytes:
    """The whole body. Raises UnsupportedMedia, BodyTooLarge, BodyTimeout, ClientGone."""
    media = headers.first(request.scope, b"content-type").partition(";")[0].strip().lower()
    if media not in MEDIA_TYPES and not media.endswith("+json"):
        raise UnsupportedMedia("The body must be JSON: send Content-Type: application/json.")
    if headers.first(request.scope, b"content-encoding").strip().lower() not in ENCODINGS:
        message = "The body must not be compressed: send it without Content-Encoding."
        raise UnsupportedMedia(message, headers={"accept-encoding": "identity"})
    declared = headers.first(request.scope, b"content-length")
    too_large = BodyTooLarge(f"The body is larger than the {bytes_max} bytes that this server accepts.")
    if declared.isdecimal() and int(declared) > bytes_max:
        raise too_large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in _parts(request):
                size += len(part)
                if size > bytes_max:
                    raise too_large
                parts.append(part)
                if declared == str(size):
                    break  # the server tells that it is all in a message of its own, for which nobody needs to wait
    except TimeoutError:
        raise BodyTimeout(f"The body did not arrive within {seconds:g} seconds.") from None
    return b"".join(parts)


async def discard(request: Request[Any, Any, Any]) -> bool:
    """Read the rest of the body and forget it. False if it had not ended within DISCARD_S and DISCARD_BYTES_MAX, or
    paused for DISCARD_IDLE_S.
    """
    size = 0
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(DISCARD_S), asyncio.timeout(DISCARD_IDLE_S) as idle:
            async for part in _parts(request):
                idle.reschedule(now() + DISCARD_IDLE_S)
                size += len(part)
                if size > DISCARD_BYTES_MAX:
                    return False
    except TimeoutError:
        return False
    return True


@asynccontextmanager
async def refusing(request: Request[Any, Any, Any]) -> AsyncGenerator[None]:
    """Inside, a request may be refused before its body has been read; what it still sends is then thrown away."""
    try:
        yield
    except GatewayError as error:
        if isinstance(error, BodyTimeout) or _waits_to_send(request) or not await discard(request):
            error.headers["connection"] = "close"
        raise


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
    """`body` as the decoder's type. Raises InvalidRequest whose `param` is the field at fault. Of a field that is given
    twice the last one counts.
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
    # msgspec skips fields of type Raw without looking at their encoding: one rule for all fields.
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


def _waits_to_send(request: Request[Any, Any, Any]) -> bool:
    expects = headers.first(request.scope, b"expect").strip().lower() == "100-continue"
    return expects and ASKED_FOR not in request.scope["state"]


async def _parts(request: Request[Any, Any, Any]) -> AsyncIterator[bytes]:
    request.scope["state"][ASKED_FOR] = True
    more = True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("The client closed the connection before it had sent its body.")
        assert message["type"] == "http.request"
        more = message.get("more_body", False)
        yield message.get("body", b"")
