"""The limiter's words and its seam. Back ends: `pg_limiter` (exact over all gateways), `local_limiter` (grace).

Null means unlimited and zero means none allowed; the two are answered before any arithmetic.
"""

import uuid
from typing import Literal, Protocol

import msgspec

Metric = Literal["requests", "tokens"]


class BucketLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A token bucket: refills `per_minute` a minute up to `burst`. `per_minute` None is unlimited, 0 is never."""

    metric: Metric
    scope: str  # what the bucket belongs to, e.g. "tenant:<uuid>"; part of the row's key
    per_minute: int | None
    burst: int | None  # None: one minute's worth


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one request wants to reserve, over all of its buckets or none."""

    request_id: uuid.UUID
    tenant_id: uuid.UUID
    api_key_id: uuid.UUID
    requests: int
    tokens: int  # prompts + prompts x n x max output
    limits: tuple[BucketLimit, ...]


class BucketState(msgspec.Struct, frozen=True, kw_only=True):
    """One bucket after the decision. Never negative; `reset_ms` is the time until it is full again."""

    metric: Metric
    limit: int
    remaining: int
    reset_ms: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """`refused_by` None means admitted. `retry_after_ms` None on a refusal means that it can never pass."""

    refused_by: Metric | None
    retry_after_ms: int | None
    buckets: tuple[BucketState, ...]


class Limiter(Protocol):
    async def admit(self, demand: Demand) -> Decision:
        """Reserve all or nothing. Idempotent by `request_id`. Raises `gateway.errors.Unavailable` when it cannot be
        decided in time.
        """
        ...

    async def settle(self, request_id: uuid.UUID, tokens_used: int) -> None:
        """Refund what was not used and close the reservation. Idempotent; never raises, waits at most 50 ms, and goes
        on trying in the background after that.
        """
        ...
