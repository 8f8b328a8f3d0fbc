"""The arithmetic of token buckets: state and time in, decision out. No clock, no I/O.

The Postgres functions of `migrations/versions/v0002_limiter.sql` do the same sums under row locks; a test runs both
through one history and compares. A level is an integer in units of 1/60,000,000 token, so that microseconds times
the limit per minute is exact at any rate.

Invariants: a level never exceeds its burst; over any span, what is taken and not given back is at most one burst plus
the refill of that span; a refusal changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.admission.limiter import BucketLimit, BucketState, Demand, Metric

UNITS = 60_000_000  # in one token: microseconds in a minute
LIMIT_MAX = 10_000_000_000  # tokens per minute, and burst; the column's constraint is the same


@dataclass(slots=True, frozen=True)
class Claim:
    """What one demand wants from one bucket. `per_minute` and `burst` are at least 1."""

    key: str
    metric: Metric
    per_minute: int
    burst: int
    amount: int

    @property
    def refundable(self) -> bool:
        """Tokens that were reserved and not used go back; a request that was admitted has been made."""
        return self.metric == "tokens"


@dataclass(slots=True, frozen=True)
class Level:
    units: int  # below 0: debt
    at_us: int  # up to which it has been refilled


@dataclass(slots=True, frozen=True)
class Verdict:
    """`refused`: index of the claim that keeps the demand out the longest, None when admitted. `retry_after_us` None on
    a refusal: never. `levels` are those after the decision, refilled in either case.
    """

    refused: int | None
    retry_after_us: int | None
    levels: tuple[Level, ...]


def key(limit: BucketLimit) -> str:
    return f"{limit.scope}/{limit.metric}"


def blocked(demand: Demand) -> Metric | None:
    """The metric of which the demand may have nothing at all (a limit of 0), if there is one."""
    return next((limit.metric for limit in demand.limits if limit.per_minute == 0), None)


def claims(demand: Demand) -> tuple[Claim, ...]:
    """The demand's claims in key order, which is the order of locks. Unlimited buckets have none; no limit is 0."""
    found: list[Claim] = []
    for limit in demand.limits:
        if limit.per_minute is None:
            continue
        amount = demand.tokens if limit.metric == "tokens" else demand.requests
        burst = limit.per_minute if limit.burst is None else limit.burst
        assert 1 <= limit.per_minute <= LIMIT_MAX
        assert 1 <= burst <= LIMIT_MAX
        assert amount >= 0
        found.append(Claim(key(limit), limit.metric, limit.per_minute, burst, min(amount, LIMIT_MAX + 1)))
    found.sort(key=lambda claim: claim.key)
    assert len({claim.key for claim in found}) == len(found), "one limit per bucket"
    return tuple(found)


def refill(level: Level, claim: Claim, now_us: int) -> Level:
    """The level at `now_us`; a clock that stepped back refills nothing."""
    full = claim.burst * UNITS
    elapsed_us = max(now_us - level.at_us, 0)
    return Level(min(full, level.units + claim.per_minute * elapsed_us), max(level.at_us, now_us))


def decide(levels: Sequence[Level], wanted: Sequence[Claim], now_us: int) -> Verdict:
    """Take every claim's amount, or nothing."""
    assert len(levels) == len(wanted)
    filled = tuple(refill(level, claim, now_us) for level, claim in zip(levels, wanted, strict=True))
    refused: int | None = None
    longest_us = 0
    for index, (level, claim) in enumerate(zip(filled, wanted, strict=True)):
        if claim.amount > claim.burst:
            return Verdict(index, None, filled)
        missing = claim.amount * UNITS - level.units
        if missing > 0 and (wait_us := -(-missing // claim.per_minute)) > longest_us:
            refused, longest_us = index, wait_us
    if refused is not None:
        return Verdict(refused, longest_us, filled)
    taken = (
        Level(level.units - claim.amount * UNITS, level.at_us) for level, claim in zip(filled, wanted, strict=True)
    )
    return Verdict(None, None, tuple(taken))


def refund(level: Level, claim: Claim, tokens: int) -> Level:
    """Give `tokens` back. Needs no clock: filling up before or after it gives the same level. It never lowers a
    bucket whose limit was raised meanwhile.
    """
    assert tokens >= 0
    return Level(max(level.units, min(claim.burst * UNITS, level.units + tokens * UNITS)), level.at_us)


def debit(level: Level, claim: Claim, tokens: int, now_us: int) -> Level:
    """Charge what was admitted without asking. Goes into debt, by one burst at the most."""
    assert tokens >= 0
    filled = refill(level, claim, now_us)
    return Level(max(-claim.burst * UNITS, filled.units - tokens * UNITS), filled.at_us)


def state(claim: Claim, units: int) -> BucketState:
    """A level as the client is told it."""
    missing_us = -(-(claim.burst * UNITS - units) // claim.per_minute)
    return BucketState(
        metric=claim.metric,
        limit=claim.per_minute,
        remaining=max(units, 0) // UNITS,
        reset_ms=max(-(-missing_us // 1_000), 0),
    )
