"""What a gateway grants while Postgres is away, and what it owes Postgres afterwards.

A local share (limit / live gateways) that starts empty, so that an outage hands out no burst of its own. What was used
of it is charged to the shared buckets on return: requests when admitted, tokens when settled.
"""

import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace

from gateway.admission import bucket
from gateway.admission.bucket import Claim
from gateway.admission.limiter import Decision, Demand
from gateway.admission.local_limiter import LocalLimiter

DEBTS_MAX = 100_000


class Grace:
    def __init__(self, now_us: Callable[[], int]) -> None:
        self._now_us = now_us
        self._limiter: LocalLimiter | None = None
        self._admitted: dict[uuid.UUID, tuple[LocalLimiter, tuple[Claim, ...]]] = {}  # not settled yet
        self._owed: dict[str, Claim] = {}  # by bucket; `amount` is what is owed

    @property
    def active(self) -> bool:
        return self._limiter is not None

    def start(self, gateways: int) -> None:
        if self._limiter is None:
            self._limiter = LocalLimiter(self._now_us, share=max(gateways, 1), starts_full=False)

    def stop(self) -> None:
        """New requests go to Postgres again. What was admitted here is still settled here."""
        self._limiter = None

    def admit(self, demand: Demand) -> Decision:
        """Raises Unavailable for what a share can never grant."""
        assert self._limiter is not None
        decision = self._limiter.decide(demand)
        if decision.refused_by is None and demand.request_id not in self._admitted:
            claims = () if bucket.blocked(demand) else bucket.claims(demand)
            self._admitted[demand.request_id] = (self._limiter, claims)
            self.owe(claim for claim in claims if not claim.refundable)
        return decision

    def settle(self, request_id: uuid.UUID, tokens_used: int) -> bool:
        """Whether the request was admitted here; then its tokens are owed now."""
        if request_id not in self._admitted:
            return False
        limiter, claims = self._admitted.pop(request_id)
        limiter.close(request_id, tokens_used)
        self.owe(replace(claim, amount=max(tokens_used, 0)) for claim in claims if claim.refundable)
        return True

    def owe(self, claims: Iterable[Claim]) -> None:
        for claim in claims:
            before = self._owed.get(claim.key)
            if before is None and len(self._owed) >= DEBTS_MAX:
                continue
            amount = min(claim.amount + (before.amount if before else 0), bucket.LIMIT_MAX)
            if amount:
                self._owed[claim.key] = replace(claim, amount=amount)

    def take_debts(self) -> list[Claim]:
        """All that is owed, in key order, for the caller to pay; `owe` again what could not be paid."""
        owed, self._owed = self._owed, {}
        return [owed[key] for key in sorted(owed)]
