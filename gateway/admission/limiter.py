"""The limiter's interface and its types. Back ends: `pg_limiter` (exact over all gateways) and `local_limiter` (used
while Postgres is away).

A limit of null is unlimited, a limit of zero allows nothing; both are decided before any arithmetic.
"""

import uuid
from typing import Final, Literal, Protocol

import msgspec

Metric = Literal[
    "requests",  # a minute: a bucket
    "tokens",  # a minute: a bucket
    "max_context",  # of one request: looked at before anything is reserved
    "max_output",  # likewise
    "concurrency",  # open requests, queued and running: a cap
    "queued_requests",  # a cap
    "queued_tokens",  # a cap
    "day_tokens",  # a budget
    "month_cost",  # a budget, in micro-units
]

BUCKETS: Final[tuple[Metric, ...]] = ("requests", "tokens")
CAPS: Final[tuple[Metric, ...]] = ("concurrency", "queued_requests", "queued_tokens")
BUDGETS: Final[tuple[Metric, ...]] = ("day_tokens", "month_cost")
RESERVED: Final = (*BUCKETS, *CAPS, *BUDGETS)  # the metrics from which an admission takes an amount


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One quota as it applies to a key. `allowed`: None is unlimited, 0 allows nothing; of a bucket it is the refill
    per minute, up to `burst` (None: one minute's refill).
    """

    metric: Metric
    tenant_id: uuid.UUID
    key_id: uuid.UUID | None = None  # None: all keys of the tenant share it
    model_id: uuid.UUID | None = None  # None: all models share it
    allowed: int | None
    burst: int | None = None
    enforced: bool = True  # False is shadow mode: evaluated and counted, and nobody is refused

    @property
    def scope(self) -> str:
        """What the limit belongs to; part of its bucket's key, and as `budget_scope` of the schema writes it."""
        owner = f"tenant:{self.tenant_id}" if self.key_id is None else f"key:{self.key_id}"
        return owner if self.model_id is None else f"{owner}/model:{self.model_id}"

    @property
    def bucket(self) -> str:
        """The key of its bucket."""
        return f"{self.scope}/{self.metric}"

    def concerns(self, model_id: uuid.UUID) -> bool:
        return self.model_id is None or self.model_id == model_id


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks to reserve, in all of its limits or in none."""

    request_id: uuid.UUID
    tenant_id: uuid.UUID
    api_key_id: uuid.UUID
    model_id: uuid.UUID
    tokens: int  # prompts + prompts x n x max output
    cost_micro: int = 0  # the most that it can cost
    limits: tuple[Limit, ...]  # those that concern its model

    def amount(self, metric: Metric) -> int:
        if metric in {"tokens", "queued_tokens", "day_tokens"}:
            return self.tokens
        return self.cost_micro if metric == "month_cost" else 1


class Used(msgspec.Struct, frozen=True):
    """What was used of a reservation."""

    tokens: int
    cost_micro: int = 0


NOTHING: Final = Used(0)


class LimitState(msgspec.Struct, frozen=True, kw_only=True):
    """One limit after the decision. `remaining` is below 0 where more is used than allowed: a limit was lowered, or a
    bucket is in debt. A bucket has a `burst`, and `reset_ms`, the time until it is full again.
    """

    metric: Metric
    limit: int
    remaining: int
    burst: int | None = None
    reset_ms: int = 0

    @property
    def used(self) -> int:
        return max((self.limit if self.burst is None else self.burst) - self.remaining, 0)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`refused` None means admitted; otherwise it is the limit with the longest wait. `retry_after_ms` None on a
    refusal means that waiting does not help. `missed` are the limits in shadow mode that would have refused.
    """

    refused: LimitState | None = None
    retry_after_ms: int | None = None
    states: tuple[LimitState, ...] = ()
    missed: tuple[Metric, ...] = ()

    @property
    def refused_by(self) -> Metric | None:
        return None if self.refused is None else self.refused.metric


class Limiter(Protocol):
    async def admit(self, demand: Demand) -> Decision:
        """Reserve all or nothing. What only a late settlement of this gateway would refuse waits for it, at most
        0.5 s, and is then told to wait a second. Idempotent by `request_id`. Raises `gateway.errors.Unavailable` when
        it cannot be decided in time.
        """
        ...

    def refuses(self, limits: tuple[Limit, ...], tokens_max: int) -> Decision | None:
        """The refusal that `admit` would give to a request of at most `tokens_max` tokens under these limits, if it is
        known without asking Postgres. Never blocks.
        """
        ...

    def started(self, request_id: uuid.UUID) -> None:
        """A worker has accepted the request: it no longer counts as queued. Idempotent; never raises and never
        blocks.
        """
        ...

    async def settle(self, request_id: uuid.UUID, used: Used) -> None:
        """Refund what was not used and close the reservation; of a request that used nothing and never started, refund
        all of it. Idempotent. Never raises; waits at most 50 ms and retries in the background after that.
        """
        ...
