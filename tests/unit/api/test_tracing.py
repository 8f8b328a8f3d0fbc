"""Whose trace a request belongs to."""

import pytest

from gateway import keys
from gateway.api import tracing
from shared.traceparent import Context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()


def scope(*lines: tuple[bytes, bytes]) -> dict:
    return {"headers": [(b"host", b"x"), *lines], "state": {}}


def test_a_caller_says_its_trace_and_its_state() -> None:
    sent = scope((b"traceparent", GOOD), (b"tracestate", b"a=1"), (b"tracestate", b"b=2"))
    assert tracing.caller(sent) == Context(TRACE, SPAN, True, "a=1,b=2")
    assert tracing.trace_id(sent) == TRACE


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ((b"traceparent", b"\xff\xfe"),),
        ((b"traceparent", GOOD), (b"traceparent", GOOD)),
        ((b"tracestate", b"a=1"),),
    ],
)
def test_who_does_not_gets_one_of_its_own(lines: tuple[tuple[bytes, bytes], ...]) -> None:
    assert tracing.caller(scope(*lines)) is None
    first, second = scope(*lines), scope(*lines)
    assert len(tracing.trace_id(first)) == 32
    assert tracing.trace_id(first) == tracing.trace_id(first) != tracing.trace_id(second)


def test_a_state_with_a_key_in_it_is_dropped() -> None:
    text, _ = keys.generate("test")
    lines = (b"traceparent", GOOD), (b"tracestate", b"a=1"), (b"tracestate", f"b={text}".encode())
    assert tracing.caller(scope(*lines)) == Context(TRACE, SPAN, True)
