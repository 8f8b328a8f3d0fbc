"""Settlements that this gateway could not write while their answers waited for it: Postgres still counts requests that
have ended.

Knows what each of them will release, so that a cap that only they fill is told from one that is full. Does no writing
itself. Invariant: a settlement is here until Postgres has it, or it is given up.
"""

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from gateway.admission import claims
from gateway.admission.cap import Cap
from gateway.admission.claims import Verdict
from gateway.admission.limiter import Demand

RETRY_US: Final = 1_000_000  # a late settlement is retried sooner than this, or has been written

Done = asyncio.Future[None]


class Release(NamedTuple):
    """A request that has ended. `queued`: its row in Postgres still says that it waits for a worker."""

    demand: Demand
    queued: bool

    def amount(self, cap: Cap) -> int:
        """How much less `cap` will hold once the settlement is written."""
        limit, demand = cap.limit, self.demand
        counted = limit.metric == "concurrency" or (self.queued and not cap.is_budget)
        if not counted or limit.key_id not in {None, demand.api_key_id} or not limit.concerns(demand.model_id):
            return 0
        return demand.amount(limit.metric)


class Overdue:
    def __init__(self) -> None:
        self._by_tenant: dict[uuid.UUID, dict[Done, Release]] = {}
        self._waiting: dict[uuid.UUID, int] = {}  # how many of the tenant's requests wait

    def add(self, release: Release, done: Done) -> None:
        """`done` resolves when it is written."""
        tenant_id = release.demand.tenant_id
        releases = self._by_tenant.setdefault(tenant_id, {})
        if done not in releases:
            releases[done] = release
            done.add_done_callback(partial(self._written, tenant_id))

    def of(self, tenant_id: uuid.UUID) -> tuple[Release, ...]:
        releases = self._by_tenant.get(tenant_id)
        return tuple(releases.values()) if releases else ()

    async def wait(self, tenant_id: uuid.UUID, timeout_s: float) -> bool:
        """Until those that the tenant has now are written, at most `timeout_s`. False at once if as many requests wait
        already: more would only ask Postgres twice for what is full.
        """
        pending, waiting = list(self._by_tenant.get(tenant_id, ())), self._waiting.get(tenant_id, 0)
        if not pending:
            return True
        if waiting >= len(pending):
            return False
        self._waiting[tenant_id] = waiting + 1
        try:
            await asyncio.wait(pending, timeout=timeout_s)
        finally:
            self._waiting[tenant_id] -= 1
            if not self._waiting[tenant_id]:
                del self._waiting[tenant_id]
        return True

    def _written(self, tenant_id: uuid.UUID, done: Done) -> None:
        releases = self._by_tenant[tenant_id]
        del releases[done]
        if not releases:
            del self._by_tenant[tenant_id]


def cures(demand: Demand, verdict: Verdict, releases: Sequence[Release]) -> bool:
    """Whether a refused demand will fit once `releases` are written."""
    return verdict.refused is not None and bool(releases) and _later(demand, verdict, releases).refused is None


def shortened(demand: Demand, verdict: Verdict, releases: Sequence[Release]) -> Verdict:
    """The verdict, where a refusal tells its client to wait for `releases` and not for a lease that they end."""
    if verdict.refused is None or verdict.retry_after_us is None or not releases:
        return verdict
    later = _later(demand, verdict, releases)
    wait_us = 0 if later.refused is None else later.retry_after_us
    if wait_us is None:
        return verdict
    refused = verdict.refused if later.refused is None else later.refused
    return replace(verdict, refused=refused, retry_after_us=min(max(wait_us, RETRY_US), verdict.retry_after_us))


def _later(demand: Demand, verdict: Verdict, releases: Sequence[Release]) -> Verdict:
    """What the decision on a refused demand will be. A cap that is full even then keeps its wait."""
    wanted = claims.of(demand)
    held = _held_after(wanted.caps, verdict.held, releases)
    return claims.decide(wanted, verdict.levels, held, 0, leases_us=verdict.retry_after_us or 0)


def _held_after(caps: Sequence[Cap], held: Sequence[int], releases: Sequence[Release]) -> tuple[int, ...]:
    return tuple(
        max(count - sum(release.amount(cap) for release in releases), 0) for cap, count in zip(caps, held, strict=True)
    )
