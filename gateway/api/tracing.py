"""The trace that a request belongs to: the caller's, if it sends a W3C `traceparent`, else a new one.

Every response has its id as `x-trace-id`, beside the request's id, and so has every line of the log that concerns the
request. A caller's `traceparent` or `tracestate` that is malformed, or holds a secret, is ignored.
"""

from typing import Final, cast

from litestar.types import Scope

from gateway import headers, keys
from shared import traceparent
from shared.trace import Off
from shared.traceparent import Context

STATE_KEY: Final = "trace"


def caller(scope: Scope) -> Context | None:
    """The caller's span, the parent of the request of `scope`; None if the caller sent none."""
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
