"""The spans of one attempt in this gateway: its publication, and its wait for a worker. Pure.

By OpenTelemetry's conventions for messaging. Both are parts of the span that the job itself names.
"""

from collections.abc import Iterator

from gateway.dispatch.attempt import Attempt
from shared import subjects, traceparent
from shared.trace import Span, Value


def spans(attempt: Attempt, now: float) -> Iterator[Span]:
    """The spans of a sampled attempt, once it is over or has no reader any more."""
    job = attempt.job
    parent = traceparent.parse([job.traceparent], [job.tracestate])
    assert parent is not None, "we wrote it"
    queue = subjects.jobs_stream_name(attempt.pool, job.tier)
    code = None if attempt.error is None else attempt.error.code or attempt.error.type
    common: dict[str, Value] = {"messaging.system": "nats", "messaging.destination.name": queue}
    published_at = attempt.published_at
    yield Span(
        name=f"publish {queue}",
        kind="producer",
        context=parent.child(),
        parent=parent,
        start_s=attempt.opened_at,
        end_s=now if published_at is None else published_at,
        attributes={**common, "messaging.operation.name": "publish", "messaging.operation.type": "send"},
        error=code if published_at is None else None,
    )
    if published_at is None:
        return
    worker: dict[str, Value] = {} if attempt.worker is None else {"forebay.worker.id": attempt.worker}
    yield Span(
        name="queue",
        context=parent.child(),
        parent=parent,
        start_s=published_at,
        end_s=max(published_at, now if attempt.bound_at is None else attempt.bound_at),
        attributes={**common, **worker, "forebay.attempt": job.attempt, "forebay.tier": job.tier},
        error=code if attempt.worker is None else None,
    )
