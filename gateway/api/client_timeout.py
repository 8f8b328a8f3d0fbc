"""How long a client waits, and whether it retries, as its own headers say. Neither is trusted: a malformed value is
ignored, and a well-formed one can only shorten its sender's own wait.

The official clients send `x-stainless-read-timeout` (seconds of silence after which they give up) and
`x-stainless-retry-count` (0 at the first try).
"""

import math
from typing import Final

from litestar.types import Scope

from gateway import headers
from gateway.db.queries import TierBounds
from gateway.dispatch.terms import Terms

READ_TIMEOUT: Final = b"x-stainless-read-timeout"
RETRY_COUNT: Final = b"x-stainless-retry-count"
READ_TIMEOUT_S_MIN: Final = 0.1
CHARS_MAX: Final = 20


def terms(scope: Scope, bounds: TierBounds) -> Terms:
    """The terms of a request, counted from its arrival."""
    wait_s = bounds.wait_ms_max / 1_000
    return Terms(
        wait_s=wait_s,
        added_s=None if bounds.first_token_ms_max is None else bounds.first_token_ms_max / 1_000,
        client_s=read_timeout_s(headers.values(scope, READ_TIMEOUT)),
        queued_requests_max=bounds.queued_requests_max,
        queued_tokens_max=bounds.queued_tokens_max,
        retry=is_retry(headers.values(scope, RETRY_COUNT)),
    )


def read_timeout_s(values: list[str]) -> float | None:
    """None for anything but one positive number of seconds. The least that counts is `READ_TIMEOUT_S_MIN`."""
    if len(values) != 1 or len(values[0]) > CHARS_MAX:
        return None
    try:
        seconds = float(values[0])
    except ValueError:
        return None
    return max(seconds, READ_TIMEOUT_S_MIN) if math.isfinite(seconds) and seconds > 0 else None


def is_retry(values: list[str]) -> bool:
    """Whether one positive whole number was sent."""
    return len(values) == 1 and len(values[0]) <= CHARS_MAX and values[0].isdecimal() and int(values[0]) > 0
