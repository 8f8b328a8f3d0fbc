"""Caps (on what is held at one time) and budgets (on what is spent in a period). Pure; the amount in use is counted
elsewhere and passed in.

Invariant: what is held never exceeds what is allowed, unless the limit was lowered in the meantime.
"""

import msgspec

from gateway.admission.limiter import BUDGETS, Limit, LimitState, Metric

AMOUNT_MAX = 1_000_000_000_000_000  # tokens or micro-units of one request; the column's constraint is the same


class Cap(msgspec.Struct, frozen=True):
    """What one request takes of one cap or budget. `allowed` is at least 1."""

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
    """Microseconds after which the cap certainly has room: when the leases that fill it have expired. None if even an
    empty cap is too small, and for budgets, whose period ends long after any client has given up.
    """
    return None if cap.is_budget or cap.amount > cap.allowed else leases_us


def state(cap: Cap, held: int) -> LimitState:
    return LimitState(metric=cap.metric, limit=cap.allowed, remaining=cap.allowed - held)
