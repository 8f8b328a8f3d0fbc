"""The only place that turns errors into responses: OpenAI's body and headers.

A stream that has begun has already sent its status, so `gateway.api.answer` sends the same object as an event.
"""

import math
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from gateway import keys
from gateway.api import tracing
from gateway.api.requestid import request_id
from gateway.errors import ClientGone, GatewayError
from shared import log

logger = log.get("gateway.api")

MESSAGE_CHARS_MAX = 1_000  # whatever a client sent that is told again
SERVED = "clients call /v1/chat/completions, /v1/completions and /v1/models, so their base URL ends in /v1"
UNEXPECTED = "The server had an error while processing this request."


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


def encode(error: GatewayError) -> bytes:
    """The JSON object `{"error": ...}`, for a response or an event."""
    message = error.message[:MESSAGE_CHARS_MAX]
    return _encoded(ErrorBody(message=message, type=error.type, param=error.param, code=error.code))


def _encoded(body: ErrorBody) -> bytes:
    """Text of the client that the error quotes, such as a path or a name, may be a key in the wrong place: it is
    redacted.
    """
    return keys.redact(msgspec.json.encode(ErrorAnswer(body)).decode()).encode()


def outcome(error: BaseException) -> str:
    """The `outcome` label: the error's code, of which there are few."""
    if isinstance(error, GatewayError):
        return error.code or error.type
    return "server_error"


def status(error: GatewayError) -> int:
    """A client whose body broke off may still be reading, and 499 is not a status of HTTP: it gets 400."""
    return 400 if isinstance(error, ClientGone) else error.status


def on_gateway_error(_: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
    return Response(encode(error), status_code=status(error), media_type="application/json", headers=headers(error))


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """The response to what Litestar itself refuses: an unknown path, a wrong method."""
    message = f"{request.method} {request.url.path[:200]}: {error.detail[:200]}"
    if error.status_code == 404:
        message += f"; {SERVED}."
    body = ErrorBody(message=message, type="invalid_request_error" if error.status_code < 500 else "server_error")
    content = _encoded(body)
    allow = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    return Response(content, status_code=error.status_code, media_type="application/json", headers=allow)


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    scope = request.scope
    return on_gateway_error(request, unexpected(error, request=str(request_id(scope)), trace=tracing.trace_id(scope)))


def unexpected(error: Exception, *, request: str, trace: str, retry: bool | None = None) -> GatewayError:
    """The client's view of a bug, which is logged with its traceback."""
    logger.error("request.crashed", request=request, trace=trace, exc_info=error)
    return GatewayError(UNEXPECTED, retry=retry)


def headers(error: GatewayError) -> dict[str, str]:
    fields = dict(error.headers)
    if error.retry_after_ms is not None:
        fields["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1_000)))
        fields["retry-after-ms"] = str(error.retry_after_ms)
    if error.should_retry is not None:
        fields["x-should-retry"] = "true" if error.should_retry else "false"
    if error.status == 401:
        fields.setdefault("www-authenticate", "Bearer")
    return fields
