"""The spans of one attempt in this worker: from its claim to its end, and inside it the engine's work. Pure.

By OpenTelemetry's conventions for messaging and generative AI, and by words of ours that begin with `forebay.`: ids
and counts. They are parts of the span that the job names.
"""

from collections.abc import Iterator

from shared import subjects
from shared.trace import Span, Value
from shared.traceparent import Context
from worker.link.attempts import Attempt, Ending


def spans(attempt: Attempt, ending: Ending, *, pool: str, worker: str, now: float) -> Iterator[Span]:
    """The spans of a sampled attempt whose end is known."""
    assert attempt.trace is not None
    job, totals = attempt.job, ending.totals
    queue = subjects.jobs_stream_name(pool, job.tier)
    own = attempt.trace.child()
    yield Span(
        name=f"process {queue}",
        kind="consumer",
        context=own,
        parent=attempt.trace,
        start_s=attempt.claimed_at,
        end_s=now,
        attributes={
            "messaging.system": "nats",
            "messaging.destination.name": queue,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "gen_ai.usage.input_tokens": totals.prompt_tokens,
            "gen_ai.usage.output_tokens": totals.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": totals.cached_tokens,
            "forebay.request.id": job.request,
            "forebay.tenant.id": job.tenant,
            "forebay.worker.id": worker,
            "forebay.attempt": job.attempt,
            "forebay.tier": job.tier,
            "forebay.preemptions": totals.preemptions,
            "forebay.outcome": ending.outcome,
        },
        error=(ending.error or ending.outcome) if ending.outcome == "error" else None,
    )
    yield from _engine(attempt, own, ending, now)


def _engine(attempt: Attempt, parent: Context, ending: Ending, now: float) -> Iterator[Span]:
    """Each phase lasts until the next one begins, or until the end."""
    totals = ending.totals
    phases: list[tuple[str, float | None, dict[str, Value]]] = [
        ("engine.wait", attempt.claimed_at, {}),
        (
            "engine.prefill",
            attempt.started_at,
            {"forebay.tokens": totals.prompt_tokens - totals.cached_tokens, "forebay.sequences": attempt.sequences},
        ),
        ("engine.decode", attempt.first_token_at, {"forebay.tokens": totals.completion_tokens}),
    ]
    begun = [(name, start_s, attributes) for name, start_s, attributes in phases if start_s is not None]
    ends = [start_s for _, start_s, _ in begun[1:]]
    for (name, start_s, attributes), end_s in zip(begun, [*ends, now], strict=True):
        yield Span(
            name=name,
            context=parent.child(),
            parent=parent,
            start_s=start_s,
            end_s=end_s,
            attributes=attributes,
        )
