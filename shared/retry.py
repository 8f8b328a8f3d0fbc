"""Retry policies (tenacity): named exceptions, capped attempts and time, full jitter."""

from typing import Any

import tenacity


def policy(
    *exceptions: type[BaseException], attempts_max: int, seconds_max: float, wait_s_max: float = 2.0
) -> tenacity.AsyncRetrying:
    """Retry on `exceptions` only, at most `attempts_max` times and `seconds_max` in all; the last error is raised
    as it was. Use as `async for attempt in policy(...): with attempt: ...`.
    """
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(exceptions),
        stop=tenacity.stop_any(tenacity.stop_after_attempt(attempts_max), tenacity.stop_after_delay(seconds_max)),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=wait_s_max),
        reraise=True,
    )


def sync_policy(
    *exceptions: type[BaseException], attempts_max: int, seconds_max: float, **options: Any
) -> tenacity.Retrying:
    """The same for blocking code."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(exceptions),
        stop=tenacity.stop_any(tenacity.stop_after_attempt(attempts_max), tenacity.stop_after_delay(seconds_max)),
        wait=tenacity.wait_random_exponential(multiplier=0.05, max=2.0),
        reraise=True,
        **options,
    )
