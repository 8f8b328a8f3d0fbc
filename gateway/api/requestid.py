"""The request's id: drawn here, never taken from the client, on every response, error and stream as `x-request-id`.

It is also the key of the request's usage event, so that a client can name what it was billed for.
"""

from typing import cast
from uuid import UUID

from litestar.types import Message, Scope

from shared.ids import uuid7

STATE_KEY = "request_id"


def request_id(scope: Scope) -> UUID:
    """The id of the request that `scope` belongs to, drawn on first use."""
    state = scope["state"]
    if STATE_KEY not in state:
        state[STATE_KEY] = uuid7()
    return cast("UUID", state[STATE_KEY])


async def add_header(message: Message, scope: Scope) -> None:
    """A `before_send` hook."""
    if message["type"] == "http.response.start":
        header = (b"x-request-id", str(request_id(scope)).encode())
        message["headers"] = [*message["headers"], header]
