"""What a gateway grants while Postgres is away, and what it owes Postgres afterwards.

It grants a local share (limit / live gateways) of each limit. The share starts empty, so that an outage adds no burst,
and fills from the moment of Postgres's last answer: what a limit refilled since then nobody has granted here. On
return, what was used is charged to the shared buckets. Budgets cannot be checked here: requests under a budget are
admitted for a grace period, then refused.
"""

import uuid
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gateway.admission import bucket, claims
from gateway.admission.bucket import Claim
from gateway.admission.limiter import BUDGETS, Decision, Demand, Limit, Used
from gateway.admission.local_limiter import LocalLimiter
from gateway.errors import Unavailable

DEBTS_MAX = 100_000
RETRY_AFTER_MS = 1_000


class Grace:
    def __init__(self, now_us: Callable[[], int], *, budget_s: float) -> None:
        self._now_us = now_us
        self._budget_us = int(budget_s * 1_000_000)
        self._limiter: LocalLimiter | None = None
        self._began_us = 0
        self._admitted: dict[uuid.UUID, LocalLimiter] = {}  # not settled yet
        self._owed: dict[str, Claim] = {}  # by bucket; `amount` is what is owed

    @property
    def active(self) -> bool:
        return self._limiter is not None

    @property
    def _budgets_ended(self) -> bool:
        """Whether the grace period of budgets is over."""
        return self._now_us() - self._began_us > self._budget_us

    def may_grant(self, limits: tuple[Limit, ...]) -> bool:
        """Whether requests under these limits, to one model or another, can still be admitted."""
        return not (self._budgets_ended and _under_budget(limit for limit in limits if limit.model_id is None))

    def start(self, gateways: int, held: Iterable[tuple[Demand, bool]] = (), *, answered_us: int) -> None:
        """`held`: this gateway's open requests, and whether each has started; they count towards its share of the
        caps. `answered_us`: when Postgres last answered.
        """
        if self._limiter is None:
            self._began_us = self._now_us()
            self._limiter = LocalLimiter(self._now_us, share=max(gateways, 1), empty_since_us=answered_us)
            for demand, started in held:
                self._limiter.hold(demand, started=started)

    def stop(self) -> None:
        """New requests go to Postgres again. What was admitted here is still settled here."""
        self._limiter = None

    def admit(self, demand: Demand) -> Decision:
        """Raises Unavailable for what a share can never grant, and for budgets once the grace period is over."""
        assert self._limiter is not None
        if self._budgets_ended and _under_budget(demand.limits):
            raise Unavailable("Budgets cannot be checked at the moment.", retry_after_ms=RETRY_AFTER_MS)
        decision = self._limiter.decide(demand)
        if decision.refused is None:
            self._admitted.setdefault(demand.request_id, self._limiter)
        return decision

    def started(self, request_id: uuid.UUID) -> None:
        limiter = self._admitted.get(request_id, self._limiter)
        if limiter is not None:
            limiter.started(request_id)

    def settle(self, request_id: uuid.UUID, used: Used) -> bool:
        """Whether the request was admitted here. If so, what it used is now owed to the shared buckets."""
        limiter = self._admitted.pop(request_id, None)
        if limiter is None:
            if self._limiter is not None:
                self._limiter.close(request_id, used)
            return False
        reservation = limiter.close(request_id, used)
        assert reservation is not None, "what is admitted is open until it is settled"
        taken = {claim.key for claim in reservation.taken}  # from the share; the debt is to the whole bucket
        for claim in claims.of(reservation.demand).buckets:
            if claim.key in taken:
                unused = bucket.unused(claim, used.tokens, started=reservation.started)
                amount = max(used.tokens, 0) if claim.metric == "tokens" else claim.amount - unused
                self.owe([replace(claim, amount=amount)])
        return True

    def owe(self, debts: Iterable[Claim]) -> None:
        for claim in debts:
            before = self._owed.get(claim.key)
            if before is None and len(self._owed) >= DEBTS_MAX:
                continue
            amount = min(claim.amount + (before.amount if before else 0), bucket.LIMIT_MAX)
            if amount:
                self._owed[claim.key] = replace(claim, amount=amount)

    def take_debts(self) -> list[Claim]:
        """All debts, in key order. The caller pays them, and gives back with `owe` what could not be paid."""
        owed, self._owed = self._owed, {}
        return [owed[key] for key in sorted(owed)]


def _under_budget(limits: Iterable[Limit]) -> bool:
    return any(limit.metric in BUDGETS and limit.enforced and limit.allowed is not None for limit in limits)
