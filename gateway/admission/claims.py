"""The claims of one request on each of its limits, and the single decision over all of them. Pure.

The SQL function `admit` decides by the same rules. Invariants: a refusal changes nothing; a limit in shadow mode
refuses nobody, and if it would have refused, nothing is taken from it.
"""

from collections.abc import Sequence

import msgspec

from gateway.admission import bucket, cap
from gateway.admission.bucket import LIMIT_MAX, Claim, Level
from gateway.admission.cap import AMOUNT_MAX, Cap
from gateway.admission.limiter import BUCKETS, RESERVED, Decision, Demand, Limit, LimitState, Metric


class Claims(msgspec.Struct, frozen=True):
    buckets: tuple[Claim, ...]  # in key order, which is the order of locks
    caps: tuple[Cap, ...]  # and budgets
    barred: tuple[Metric, ...]  # limits of 0 in shadow mode: any request would miss them


class Verdict(msgspec.Struct, frozen=True):
    """Limits are numbered from 0, buckets first, then caps. `refused` is the limit with the longest wait, None when
    admitted. `retry_after_us` is None if waiting does not help. `levels` and `held` are the values after the decision.
    """

    refused: int | None
    retry_after_us: int | None
    levels: tuple[Level, ...]
    held: tuple[int, ...]
    missed: tuple[int, ...]


def blocked(demand: Demand) -> Limit | None:
    """The first limit that allows nothing at all (0), if there is one."""
    return next((limit for limit in demand.limits if limit.allowed == 0 and limit.enforced), None)


def of(demand: Demand) -> Claims:
    """The request's claims. Unlimited limits make none; no enforced limit here is 0."""
    found = [limit for limit in demand.limits if limit.metric in RESERVED and limit.allowed is not None]
    buckets = sorted(
        (_claim(limit, demand) for limit in found if limit.metric in BUCKETS and limit.allowed),
        key=lambda claim: claim.key,
    )
    assert len({claim.key for claim in buckets}) == len(buckets), "one limit per bucket"
    caps = tuple(
        Cap(limit, limit.allowed, min(demand.amount(limit.metric), AMOUNT_MAX + 1))
        for limit in found
        if limit.metric not in BUCKETS and limit.allowed
    )
    barred: tuple[Metric, ...] = tuple(limit.metric for limit in found if limit.allowed == 0)
    return Claims(tuple(buckets), caps, barred)


def decide(claims: Claims, levels: Sequence[Level], held: Sequence[int], now_us: int, *, leases_us: int) -> Verdict:
    """Take every claim's amount, or nothing. `leases_us`: the time until everything that holds a cap has released
    it.
    """
    filled = tuple(bucket.refill(level, claim, now_us) for level, claim in zip(levels, claims.buckets, strict=True))
    lacking = [
        (index, claim.enforced, bucket.wait_us(level, claim))
        for index, (level, claim) in enumerate(zip(filled, claims.buckets, strict=True))
        if not bucket.fits(level, claim)
    ] + [
        (index, one.limit.enforced, cap.wait_us(one, leases_us))
        for index, (one, count) in enumerate(zip(claims.caps, held, strict=True), start=len(filled))
        if not cap.fits(count, one)
    ]
    missed = tuple(index for index, enforced, _ in lacking if not enforced)
    waits = [(index, wait_us) for index, enforced, wait_us in lacking if enforced]
    if waits:
        refused, wait_us = max(waits, key=lambda wait: float("inf") if wait[1] is None else wait[1])
        return Verdict(refused, wait_us, filled, tuple(held), missed)
    taken = tuple(
        level if index in missed else bucket.take(level, claim)
        for index, (level, claim) in enumerate(zip(filled, claims.buckets, strict=True))
    )
    holding = tuple(count + one.amount for one, count in zip(claims.caps, held, strict=True))
    return Verdict(None, None, taken, holding, missed)


def decision(claims: Claims, verdict: Verdict) -> Decision:
    """The verdict as the limiter's callers see it."""
    states = (
        *(bucket.state(claim, level.units) for claim, level in zip(claims.buckets, verdict.levels, strict=True)),
        *(cap.state(one, count) for one, count in zip(claims.caps, verdict.held, strict=True)),
    )
    enforced = [claim.enforced for claim in claims.buckets] + [one.limit.enforced for one in claims.caps]
    missed: tuple[Metric, ...] = tuple(states[index].metric for index in verdict.missed)
    return Decision(
        refused=None if verdict.refused is None else states[verdict.refused],
        retry_after_ms=milliseconds(verdict.retry_after_us),
        states=tuple(state for state, binding in zip(states, enforced, strict=True) if binding),
        missed=(*claims.barred, *missed),
    )


def never(limit: Limit) -> Decision:
    """The refusal by a limit of 0."""
    nothing = LimitState(metric=limit.metric, limit=0, remaining=0)
    return Decision(refused=nothing, states=(nothing,))


def milliseconds(us: int | None) -> int | None:
    """Rounded up, so that a client that waits this long is not too early."""
    return None if us is None else -(-us // 1_000)


def _claim(limit: Limit, demand: Demand) -> Claim:
    assert limit.allowed is not None
    burst = limit.allowed if limit.burst is None else limit.burst
    amount = demand.amount(limit.metric)
    assert 1 <= limit.allowed <= LIMIT_MAX
    assert 1 <= burst <= LIMIT_MAX
    assert amount >= 0
    return Claim(limit.bucket, limit.metric, limit.allowed, burst, min(amount, LIMIT_MAX + 1), limit.enforced)
