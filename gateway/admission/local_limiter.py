"""A limiter in this process's memory, with the same arithmetic as the one in Postgres.

It is exact for one gateway. With `share` it grants one gateway's part of every limit, which is used while Postgres is
away. Knows nothing of Postgres, and therefore nothing of budgets, whose spending only the ledger knows.
"""

import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from gateway.admission import bucket, claims
from gateway.admission.bucket import Claim, Level
from gateway.admission.cap import Cap
from gateway.admission.claims import Claims, Verdict
from gateway.admission.limiter import Decision, Demand, Used
from gateway.errors import Unavailable

BUCKETS_MAX = 100_000
RETRY_AFTER_MS = 1_000
LEASE_US = 15_000_000  # after which a refused request may try again: when a place becomes free is not known


@dataclass(slots=True)
class Reservation:
    demand: Demand
    taken: tuple[Claim, ...]
    started: bool = False


class LocalLimiter:
    """Implements `Limiter`. A bucket begins full, or was empty at `empty_since_us` and has filled since."""

    def __init__(self, now_us: Callable[[], int], *, share: int = 1, empty_since_us: int | None = None) -> None:
        assert share >= 1
        self._now_us = now_us
        self._share = share
        self._empty_since_us = empty_since_us
        self._levels: OrderedDict[str, Level] = OrderedDict()  # least recently used first
        self._open: dict[uuid.UUID, Reservation] = {}
        self._by_tenant: dict[uuid.UUID, set[uuid.UUID]] = {}

    async def admit(self, demand: Demand) -> Decision:
        return self.decide(demand)

    def started(self, request_id: uuid.UUID) -> None:
        if request_id in self._open:
            self._open[request_id].started = True

    async def settle(self, request_id: uuid.UUID, used: Used) -> None:
        self.close(request_id, used)

    def decide(self, demand: Demand) -> Decision:
        """`admit` without an event loop. Raises Unavailable for what fits the limit but not this gateway's share of
        it.
        """
        if limit := claims.blocked(demand):
            return claims.never(limit)
        whole = claims.of(demand)
        wanted = self._part(whole)
        levels = [self._level(claim) for claim in wanted.buckets]
        held = [self._held(cap, demand) for cap in wanted.caps]
        now_us = self._now_us()
        if demand.request_id in self._open:
            filled = tuple(
                bucket.refill(level, claim, now_us) for level, claim in zip(levels, wanted.buckets, strict=True)
            )
            return claims.decision(wanted, Verdict(None, None, filled, tuple(held), ()))
        verdict = claims.decide(wanted, levels, held, now_us, leases_us=LEASE_US)
        if verdict.refused is None:
            self._keep(wanted.buckets, verdict.levels)
            self.hold(demand, _taken(wanted, verdict))
        elif verdict.retry_after_us is None and _fits_alone(whole, verdict.refused):
            raise Unavailable("Rate limits cannot be checked at the moment.", retry_after_ms=RETRY_AFTER_MS)
        return claims.decision(wanted, verdict)

    def hold(self, demand: Demand, taken: tuple[Claim, ...] = (), *, started: bool = False) -> None:
        """Count a request as open, whoever admitted it."""
        self._open[demand.request_id] = Reservation(demand, taken, started)
        self._by_tenant.setdefault(demand.tenant_id, set()).add(demand.request_id)

    def close(self, request_id: uuid.UUID, used: Used) -> Reservation | None:
        """`settle` without an event loop: the reservation that was open, or None."""
        reservation = self._open.pop(request_id, None)
        if reservation is None:
            return None
        tenant_id = reservation.demand.tenant_id
        self._by_tenant[tenant_id].discard(request_id)
        if not self._by_tenant[tenant_id]:
            del self._by_tenant[tenant_id]
        for claim in reservation.taken:
            unused = bucket.unused(claim, used.tokens, started=reservation.started)
            self._keep((claim,), (bucket.refund(self._level(claim), claim, unused),))
        return reservation

    def _part(self, whole: Claims) -> Claims:
        """This gateway's share of the claims. A share of a cap is rounded down, perhaps to nothing, or all gateways
        together would exceed the cap.
        """
        share = self._share
        return Claims(
            tuple(
                replace(claim, per_minute=max(claim.per_minute // share, 1), burst=max(claim.burst // share, 1))
                for claim in whole.buckets
            ),
            tuple(replace(cap, allowed=cap.allowed // share) for cap in whole.caps if not cap.is_budget),
            whole.barred,
        )

    def _held(self, cap: Cap, demand: Demand) -> int:
        """What the scope of `cap` holds now: its open or queued requests, or the tokens of the queued ones."""
        held = 0
        for request_id in self._by_tenant.get(demand.tenant_id, ()):
            request = self._open[request_id]
            if cap.metric != "concurrency" and request.started:
                continue
            if cap.limit.key_id in {None, request.demand.api_key_id} and cap.limit.concerns(request.demand.model_id):
                held += request.demand.amount(cap.metric)
        return held

    def _level(self, claim: Claim) -> Level:
        if level := self._levels.get(claim.key):
            return level
        if self._empty_since_us is not None:
            return Level(0, self._empty_since_us)
        return Level(claim.burst * bucket.UNITS, self._now_us())

    def _keep(self, wanted: tuple[Claim, ...], levels: tuple[Level, ...]) -> None:
        for claim, level in zip(wanted, levels, strict=True):
            self._levels[claim.key] = level
            self._levels.move_to_end(claim.key)
        while len(self._levels) > BUCKETS_MAX:
            self._levels.popitem(last=False)


def _taken(wanted: Claims, verdict: Verdict) -> tuple[Claim, ...]:
    return tuple(claim for index, claim in enumerate(wanted.buckets) if index not in verdict.missed)


def _fits_alone(whole: Claims, index: int) -> bool:
    """Whether the limit itself, undivided, is large enough for the claim."""
    if index < len(whole.buckets):
        return whole.buckets[index].amount <= whole.buckets[index].burst
    cap = [cap for cap in whole.caps if not cap.is_budget][index - len(whole.buckets)]
    return cap.amount <= cap.allowed
