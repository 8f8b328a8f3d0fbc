"""How a limiter's decision is told to the client: `x-ratelimit-*` headers, and the refusal.

For each metric the tightest bucket speaks. Durations are written as OpenAI writes them: `850ms`, `6.5s`, `1m30s`.
"""

from gateway.admission.limiter import BucketState, Decision, Demand
from gateway.errors import RateLimited


def headers(decision: Decision) -> dict[str, str]:
    told: dict[str, str] = {}
    for metric in ("requests", "tokens"):
        if bucket := _tightest(decision, metric):
            told[f"x-ratelimit-limit-{metric}"] = str(bucket.limit)
            told[f"x-ratelimit-remaining-{metric}"] = str(bucket.remaining)
            told[f"x-ratelimit-reset-{metric}"] = duration(bucket.reset_ms)
    return told


def refusal(decision: Decision, demand: Demand) -> RateLimited:
    """The error of a refused `decision`."""
    metric = decision.refused_by
    assert metric is not None
    bucket = _tightest(decision, metric)
    wanted = demand.tokens if metric == "tokens" else demand.requests
    room = f" Limit {bucket.limit}, remaining {bucket.remaining}, requested {wanted}." if bucket else ""
    if decision.retry_after_ms is None:
        advice = " The request is larger than the limit and can never pass."
    else:
        advice = f" Try again in {duration(decision.retry_after_ms)}."
    return RateLimited(
        f"Rate limit reached on {metric} per minute.{room}{advice}",
        kind=metric,
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


def _tightest(decision: Decision, metric: str) -> BucketState | None:
    return min(
        (bucket for bucket in decision.buckets if bucket.metric == metric),
        key=lambda bucket: bucket.remaining,
        default=None,
    )
