"""A limiter in this process's memory, on the same arithmetic as the one in Postgres.

It is exact for one gateway. With `share` it grants one gateway's part of every limit, which is what stands in while
Postgres is away. Knows nothing of Postgres.
"""

import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from gateway.admission import bucket
from gateway.admission.bucket import Claim, Level
from gateway.admission.limiter import BucketState, Decision, Demand
from gateway.errors import Unavailable

BUCKETS_MAX = 100_000
RETRY_AFTER_MS = 1_000


@dataclass(slots=True, frozen=True)
class Reservation:
    claims: tuple[Claim, ...]
    tokens: int


class LocalLimiter:
    """Implements `Limiter`. `starts_full` says what a bucket that was never seen holds."""

    def __init__(self, now_us: Callable[[], int], *, share: int = 1, starts_full: bool = True) -> None:
        assert share >= 1
        self._now_us = now_us
        self._share = share
        self._starts_full = starts_full
        self._began_us = now_us()
        self._levels: OrderedDict[str, Level] = OrderedDict()  # least recently used first
        self._open: dict[uuid.UUID, Reservation] = {}

    async def admit(self, demand: Demand) -> Decision:
        return self.decide(demand)

    async def settle(self, request_id: uuid.UUID, tokens_used: int) -> None:
        self.close(request_id, tokens_used)

    def decide(self, demand: Demand) -> Decision:
        """`admit` without a loop. Raises Unavailable for what fits the limit but not the share of it."""
        if metric := bucket.blocked(demand):
            return never(metric)
        whole = bucket.claims(demand)
        wanted = tuple(self._part(claim) for claim in whole)
        levels = [self._level(claim) for claim in wanted]
        now_us = self._now_us()
        if demand.request_id in self._open:
            filled = [bucket.refill(level, claim, now_us) for level, claim in zip(levels, wanted, strict=True)]
            return Decision(refused_by=None, retry_after_ms=None, buckets=_states(wanted, filled))
        verdict = bucket.decide(levels, wanted, now_us)
        buckets = _states(wanted, verdict.levels)
        if verdict.refused is not None:
            claim = whole[verdict.refused]
            if verdict.retry_after_us is None and claim.amount <= claim.burst:
                raise Unavailable("rate limits cannot be checked at the moment", retry_after_ms=RETRY_AFTER_MS)
            return Decision(
                refused_by=claim.metric, retry_after_ms=milliseconds(verdict.retry_after_us), buckets=buckets
            )
        self._keep(wanted, verdict.levels)
        self._open[demand.request_id] = Reservation(wanted, demand.tokens)
        return Decision(refused_by=None, retry_after_ms=None, buckets=buckets)

    def close(self, request_id: uuid.UUID, tokens_used: int) -> Reservation | None:
        """`settle` without a loop: the reservation that was open, None if there was none."""
        reservation = self._open.pop(request_id, None)
        if reservation is None:
            return None
        unused = max(reservation.tokens - max(tokens_used, 0), 0)
        refunded = tuple(claim for claim in reservation.claims if claim.refundable)
        self._keep(refunded, tuple(bucket.refund(self._level(claim), claim, unused) for claim in refunded))
        return reservation

    def _part(self, claim: Claim) -> Claim:
        return replace(
            claim,
            per_minute=max(claim.per_minute // self._share, 1),
            burst=max(claim.burst // self._share, 1),
        )

    def _level(self, claim: Claim) -> Level:
        return self._levels.get(claim.key) or Level(
            claim.burst * bucket.UNITS if self._starts_full else 0, self._began_us
        )

    def _keep(self, wanted: tuple[Claim, ...], levels: tuple[Level, ...]) -> None:
        for claim, level in zip(wanted, levels, strict=True):
            self._levels[claim.key] = level
            self._levels.move_to_end(claim.key)
        while len(self._levels) > BUCKETS_MAX:
            self._levels.popitem(last=False)


def never(metric: bucket.Metric) -> Decision:
    """The answer to a limit of 0."""
    nothing = BucketState(metric=metric, limit=0, remaining=0, reset_ms=0)
    return Decision(refused_by=metric, retry_after_ms=None, buckets=(nothing,))


def milliseconds(us: int | None) -> int | None:
    """Rounded up, so that whoever waits that long is not too early."""
    return None if us is None else -(-us // 1_000)


def _states(wanted: tuple[Claim, ...], levels: "tuple[Level, ...] | list[Level]") -> tuple[BucketState, ...]:
    return tuple(bucket.state(claim, level.units) for claim, level in zip(wanted, levels, strict=True))
