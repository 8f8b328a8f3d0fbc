"""The usage events that a gateway writes, for attempts that no worker will bill.

Pure. A worker bills attempts that it ended or was told to cancel; the gateway bills those that never ran or were lost.
"""

from gateway.dispatch.attempt import Attempt
from shared import wire


def bill(attempt: Attempt, *, finish: str, gateway: str, now: float) -> wire.UsageEvent:
    """The bill for the tokens that were received; an empty one for an attempt that no worker accepted."""
    ran = attempt.worker is not None
    job = attempt.job
    ttft_s = None if attempt.first_token_at is None else attempt.first_token_at - attempt.opened_at
    return wire.UsageEvent(
        request=job.request,
        attempt=job.attempt,
        final=True,
        tenant=job.tenant,
        key=job.key,
        model=job.model,
        tier=job.tier,
        prompt_tokens=attempt.prompt_tokens if ran else 0,
        cached_tokens=0,
        completion_tokens=attempt.completion_tokens,
        recomputed_tokens=0,
        finish=finish,
        ttft_ms=None if ttft_s is None else round(ttft_s * 1000),
        total_ms=round((now - attempt.opened_at) * 1000),
        worker=attempt.worker or "",
        gateway=gateway,
    )
