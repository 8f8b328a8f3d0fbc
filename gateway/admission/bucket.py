"""The arithmetic of token buckets: state and time in, state out. No clock, no I/O.

The Postgres functions of `migrations/versions/` (0002, 0008 and 0013) compute the same under row locks; a test runs
both through one history and compares them. A level is an integer in units of 1/60,000,000 token, so
that microseconds times the limit per minute is exact at any rate.

Invariants: a level never exceeds its burst; over any span, what is taken and not given back is at most one burst plus
the refill of that span.
"""

import msgspec

from gateway.admission.limiter import LimitState, Metric

UNITS = 60_000_000  # in one token: microseconds in a minute
LIMIT_MAX = 10_000_000_000  # tokens per minute, and burst; the column's constraint is the same


class Claim(msgspec.Struct, frozen=True):
    """What one request takes from one bucket. `per_minute` and `burst` are at least 1."""

    key: str
    metric: Metric
    per_minute: int
    burst: int
    amount: int
    enforced: bool = True


class Level(msgspec.Struct, frozen=True):
    units: int  # below 0: debt
    at_us: int  # up to which it has been refilled


def refill(level: Level, claim: Claim, now_us: int) -> Level:
    """The level at `now_us`. A clock that was set back refills nothing."""
    full = claim.burst * UNITS
    elapsed_us = max(now_us - level.at_us, 0)
    return Level(min(full, level.units + claim.per_minute * elapsed_us), max(level.at_us, now_us))


def fits(level: Level, claim: Claim) -> bool:
    return level.units >= claim.amount * UNITS


def wait_us(level: Level, claim: Claim) -> int | None:
    """Microseconds until the claim fits, rounded up; None if even a full bucket is too small for it."""
    if claim.amount > claim.burst:
        return None
    return max(-(-(claim.amount * UNITS - level.units) // claim.per_minute), 0)


def take(level: Level, claim: Claim) -> Level:
    assert fits(level, claim)
    return Level(level.units - claim.amount * UNITS, level.at_us)


def refund(level: Level, claim: Claim, tokens: int) -> Level:
    """Give `tokens` back. Needs no clock: refilling before or after it gives the same level. Never lowers a bucket
    whose limit was raised in the meantime.
    """
    assert tokens >= 0
    return Level(max(level.units, min(claim.burst * UNITS, level.units + tokens * UNITS)), level.at_us)


def unused(claim: Claim, tokens_used: int, *, started: bool) -> int:
    """The part of a claim to refund: unused tokens; the request itself only if it was never started."""
    if claim.metric == "tokens":
        return max(claim.amount - max(tokens_used, 0), 0)
    return 0 if started or tokens_used > 0 else claim.amount


def state(claim: Claim, units: int) -> LimitState:
    """A level in the whole tokens that the client is shown."""
    missing_us = -(-(claim.burst * UNITS - units) // claim.per_minute)
    return LimitState(
        metric=claim.metric,
        limit=claim.per_minute,
        remaining=units // UNITS,
        burst=claim.burst,
        reset_ms=max(-(-missing_us // 1_000), 0),
    )
