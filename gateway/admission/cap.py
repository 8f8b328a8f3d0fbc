"""Caps and budgets: limits on what is held at once or was spent in a period. Pure; what is held is counted elsewhere.

Invariant: what is held never exceeds what is allowed, unless the limit was lowered meanwhile.
"""

import msgspec

from gateway.admission.limiter import BUDGETS, Limit, LimitState, Metric

AMOUNT_MAX = 1_000_000_000_000_000  # tokens or micro-units of one request; the column's constraint is the same


class Cap(msgspec.Struct, frozen=True):
    """What one demand wants of one cap or budget. `allowed` is at least 1."""

    limit: Limit
    allowed: int
    amount: int

    @property
    def metric(self) -> Metric:
        return self.limit.metric

    @property
    def is_budget(self) -> bool:
        return self.limit.metric in BUDGETS


def fits(held: int, cap: Cap) -> bool:
    return held + cap.amount <= cap.allowed


def wait_us(cap: Cap, leases_us: int) -> int | None:
    """How long until it fits for certain: when the leases in its way have run out. None for what the empty cap does not
    hold, and for budgets, which no moment that a client waits for fills up.
    """
    return None if cap.is_budget or cap.amount > cap.allowed else leases_us


def state(cap: Cap, held: int) -> LimitState:
    return LimitState(metric=cap.metric, limit=cap.allowed, remaining=max(cap.allowed - held, 0))
