"""A limiter's decision as the client sees it: `x-ratelimit-*` headers, and the error of a refusal.

The headers of a metric show its bucket with the least left, or the one that refused. Durations are written as OpenAI
writes them: `850ms`, `6.5s`, `1m30s`.
"""

from typing import Final

from gateway.admission.limiter import BUDGETS, Decision, LimitState, Metric
from gateway.errors import BudgetExhausted, GatewayError, RateLimited

_NAMES: Final[dict[Metric, str]] = {
    "requests": "requests per minute",
    "tokens": "tokens per minute",
    "concurrency": "concurrent requests",
    "queued_requests": "queued requests",
    "queued_tokens": "queued tokens",
    "day_tokens": "tokens per day",
    "month_cost": "cost per month, in millionths",
}


def headers(decision: Decision) -> dict[str, str]:
    fields: dict[str, str] = {}
    for metric in ("requests", "tokens"):
        if bucket := _binding(decision, metric):
            fields[f"x-ratelimit-limit-{metric}"] = str(bucket.limit)
            fields[f"x-ratelimit-remaining-{metric}"] = str(max(bucket.remaining, 0))
            fields[f"x-ratelimit-reset-{metric}"] = duration(bucket.reset_ms)
    return fields


def refusal(decision: Decision, asked: int) -> GatewayError:
    """The error of a refused `decision`; `asked` is the amount that was wanted of the refusing limit."""
    state = decision.refused
    assert state is not None
    numbers = f"Limit {state.limit}{_burst(state)}, used {state.used}, requested {asked}."
    if state.metric in BUDGETS:
        return BudgetExhausted(
            f"You exceeded your current quota on {_NAMES[state.metric]}. {numbers}", headers=headers(decision)
        )
    if decision.retry_after_ms is None:
        advice = "The request is larger than the limit and can never pass."
    else:
        advice = f"Try again in {duration(decision.retry_after_ms)}."
    return RateLimited(
        f"Rate limit reached on {_NAMES[state.metric]}. {numbers} {advice}",
        kind="tokens" if state.metric in {"tokens", "queued_tokens"} else "requests",
        retry_after_ms=decision.retry_after_ms,
        headers=headers(decision),
    )


def duration(ms: int) -> str:
    """`ms` >= 0 as a Go-style duration: 850ms, 6.5s, 1m30s, 2h0m5s."""
    if ms < 1_000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, 60_000)
    seconds = f"{rest_ms / 1_000:g}s"
    if minutes == 0:
        return seconds
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{seconds}" if hours else f"{minutes}m{seconds}"


def _binding(decision: Decision, metric: Metric) -> LimitState | None:
    if decision.refused_by == metric:
        return decision.refused
    return min(
        (state for state in decision.states if state.metric == metric),
        key=lambda state: state.remaining,
        default=None,
    )


def _burst(state: LimitState) -> str:
    return "" if state.burst in {None, state.limit} else f" (burst {state.burst})"
