"""The trace that a request belongs to: its caller's, if that says so in W3C's words, else one of its own.

Every response tells it as `x-trace-id`, beside the request's id, and every line of the log that concerns the request.
What a caller sends is an id and, for other systems, a state: malformed, or with a secret in it, it is ignored.
"""

from typing import Final, cast

from litestar.types import Scope

from gateway import headers
from gateway.auth import keys
from shared import traceparent
from shared.trace import Off
from shared.traceparent import Context

STATE_KEY: Final = "trace"


def caller(scope: Scope) -> Context | None:
    """The span that `scope`'s request is a part of for whoever sent it."""
    parents = headers.values(scope, b"traceparent")
    if not parents:
        return None
    states = headers.values(scope, b"tracestate")
    return traceparent.parse(parents, states if all(keys.redact(line) == line for line in states) else ())


def trace_id(scope: Scope) -> str:
    """The id of the trace that `scope`'s request belongs to."""
    state = scope["state"]
    if STATE_KEY not in state:
        state[STATE_KEY] = Off().begin(caller(scope))
    return cast("Context", state[STATE_KEY]).trace
