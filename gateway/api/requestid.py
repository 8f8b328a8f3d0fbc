"""The request id: drawn here, never taken from the client, and sent with every response, error and stream as
`x-request-id`, beside the id of its trace.

It is also the key of the request's usage event, so a client can name what it was billed for. A client's own id is
logged beside it if it is well-formed.
"""

import re
from typing import Final, cast
from uuid import UUID

from litestar.types import Message, Scope

from gateway import headers, keys
from gateway.api import tracing
from shared.ids import uuid7

STATE_KEY = "request_id"
REQUEST_HEADER: Final = b"x-request-id"

_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")


def request_id(scope: Scope) -> UUID:
    """The id of the request that `scope` belongs to, drawn on first use."""
    state = scope["state"]
    if STATE_KEY not in state:
        state[STATE_KEY] = uuid7()
    return cast("UUID", state[STATE_KEY])


def client_id(scope: Scope) -> str | None:
    """The client's own id of its request, without secrets; None unless it sent exactly one id of harmless
    characters.
    """
    sent = headers.values(scope, REQUEST_HEADER)
    return keys.redact(sent[0]) if len(sent) == 1 and _CLIENT_ID.fullmatch(sent[0]) else None


def header_lines(request: str, trace: str) -> list[tuple[bytes, bytes]]:
    return [(REQUEST_HEADER, request.encode()), (b"x-trace-id", trace.encode())]


async def add_header(message: Message, scope: Scope) -> None:
    """A `before_send` hook, for responses that do not carry the header yet."""
    if message["type"] == "http.response.start" and all(name != REQUEST_HEADER for name, _ in message["headers"]):
        lines = header_lines(str(request_id(scope)), tracing.trace_id(scope))
        message["headers"] = [*message["headers"], *lines]
