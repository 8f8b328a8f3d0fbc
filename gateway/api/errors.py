"""The only place that turns errors into responses: OpenAI's body and headers.

A stream that has begun has no status left to tell an error by: `gateway.api.answer` sends the same object as an event.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec
from litestar import Request, Response
from litestar.exceptions import HTTPException

from gateway import headers
from gateway.api import patience, tracing
from gateway.api.requestid import request_id
from gateway.auth import keys
from gateway.errors import ClientGone, GatewayError
from shared import log

logger = log.get("gateway.api")

TOKENS_USED = "tokens_used"  # a request's state: what it is charged with, as far as it has come
MESSAGE_CHARS_MAX = 1_000  # whatever a client sent that is told again
UNEXPECTED = "The server had an error while processing this request."


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    error: ErrorBody


def encode(error: GatewayError) -> bytes:
    """The JSON object that says `error`, in a response as in an event."""
    message = error.message[:MESSAGE_CHARS_MAX]
    return _encoded(ErrorBody(message=message, type=error.type, param=error.param, code=error.code))


def _encoded(body: ErrorBody) -> bytes:
    """What a client sent and is told again, a path or a name, may be its key in the wrong place: it is cut."""
    return keys.redact(msgspec.json.encode(ErrorAnswer(body)).decode()).encode()


def outcome(error: BaseException) -> str:
    """The `outcome` label: the error's code, of which there are few."""
    if isinstance(error, GatewayError):
        return error.code or error.type
    return "server_error"


def on_gateway_error(_: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
    # Whoever sent a body that breaks off may still be reading, and 499 is no status of HTTP's.
    status = 400 if isinstance(error, ClientGone) else error.status
    return Response(encode(error), status_code=status, media_type="application/json", headers=_headers(error))


def on_http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: an unknown path, a wrong method."""
    message = f"{request.method} {request.url.path[:200]}: {error.detail[:200]}"
    body = ErrorBody(message=message, type="invalid_request_error" if error.status_code < 500 else "server_error")
    content = _encoded(body)
    told = {name: value for name, value in (error.headers or {}).items() if name.lower() == "allow"}
    return Response(content, status_code=error.status_code, media_type="application/json", headers=told)


def on_unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Worth one more try, unless tokens were used for it: they are paid for, and would be again."""
    scope = request.scope
    logger.error("request.crashed", request=str(request_id(scope)), trace=tracing.trace_id(scope), exc_info=error)
    tokens_used: Callable[[], int] | None = scope["state"].get(TOKENS_USED)
    retry = None
    if tokens_used is not None:
        retry = not tokens_used() and not patience.is_retry(headers.values(scope, patience.RETRY_COUNT))
    return on_gateway_error(request, GatewayError(UNEXPECTED, retry=retry))


def _headers(error: GatewayError) -> dict[str, str]:
    told = dict(error.headers)
    if error.retry_after_ms is not None:
        told["retry-after"] = str(max(1, math.ceil(error.retry_after_ms / 1_000)))
        told["retry-after-ms"] = str(error.retry_after_ms)
    if error.should_retry is not None:
        told["x-should-retry"] = "true" if error.should_retry else "false"
    if error.status == 401:
        told.setdefault("www-authenticate", "Bearer")
    return told
