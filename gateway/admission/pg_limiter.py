"""The limiter that is exact over any number of gateways: buckets, caps, budgets and reservations are in Postgres.

An admission takes one round trip, unless a late settlement would refuse it (`overdue`); starts and settlements are
written in batches. While Postgres cannot decide, this gateway's local share does (`grace`). Every admission is closed
exactly once, by `settle` or by the ledger, and its buckets then lack what it used, whether or not its lease had run out
meanwhile. Postgres's clock decides, never this process's.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import asyncpg

from gateway.admission import claims
from gateway.admission.bucket import Level
from gateway.admission.claims import Verdict
from gateway.admission.database_clock import DatabaseClock
from gateway.admission.grace import Grace
from gateway.admission.held_up import HeldUp
from gateway.admission.leases import LEASE_MS, Leases
from gateway.admission.limiter import NOTHING, Decision, Demand, Limit, Used
from gateway.admission.overdue import Overdue, Release, cures, shortened
from gateway.admission.prepared import Prepared
from gateway.admission.refusal_cache import RefusalCache
from gateway.admission.settling import Settling
from gateway.db import pools
from gateway.db.lanes import Lanes, NoPlace
from gateway.errors import Unavailable
from shared import log, tasks

ADMIT_TIMEOUT_S: Final = 2.0
SETTLE_WAIT_S: Final = 0.05
OVERDUE_WAIT_S: Final = 0.5  # of a request that would be refused because a settlement took longer
RENEW_S: Final = 5.0
PROBE_S: Final = 0.5  # while Postgres is away
DEBIT_TIMEOUT_S: Final = 2.0
DRAIN_S: Final = 3.0
RETRY_AFTER_MS: Final = 1_000
UNANSWERED: Final = "rate limits could not be checked in time"
CONNECTIONS_KEPT: Final = 2  # for settlements and upkeep, however many admissions wait
BUDGET_GRACE_S: Final = 60.0
PREPARED_MAX: Final = 10_000

_BUCKETS = ("text[]", "bigint[]", "bigint[]", "bigint[]", "boolean[]")
_CAPS = ("text[]", "boolean[]", "boolean[]", "bigint[]", "bigint[]", "boolean[]")
_CAST_ARRAYS = ", ".join(f"${place}::text::{kind}" for place, kind in enumerate(_BUCKETS + _CAPS, 9))
_ADMIT = f"SELECT * FROM admit($1, $2, $3, $4, $5, $6, $7, $8, {_CAST_ARRAYS})"  # noqa: S608 - our own words
_DEBIT = "SELECT debit_buckets($1, $2, $3, $4)"


def monotonic_us() -> int:
    return time.monotonic_ns() // 1_000


class PgLimiter:
    """Implements `Limiter`; use with `async with`. The caller enters and leaves `pool`, and no other limiter may use
    it, since most of its connections are kept here.
    """

    def __init__(
        self,
        pool: asyncpg.Pool,
        *,
        gateway_id: str,
        budget_grace_s: float = BUDGET_GRACE_S,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self._pool = pool
        self._gateway_id = gateway_id
        self._log = log.get("limiter")
        self._admissions = Lanes(pool, max(pool.get_max_size() - CONNECTIONS_KEPT, 1))
        self._settlements = Lanes(pool, 1)
        self._settling = Settling(self._settlements)
        self._overdue = Overdue()
        self._leases = Leases(pool, gateway_id, DatabaseClock(pool, now_us))
        self._now_us = now_us
        self._answered_us = now_us()  # when Postgres last answered
        self._grace = Grace(now_us, budget_s=budget_grace_s)
        self._refusal_cache = RefusalCache()
        self._held_up = HeldUp()
        self._prepared: dict[int, Prepared] = {}  # by the identity of `limits`
        self._gateways = 1
        self._upkeep_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self._admissions)
        await self._stack.enter_async_context(self._settlements)
        self._tasks = [
            asyncio.create_task(tasks.keep(self._settling.run, "limiter settling")),
            asyncio.create_task(tasks.keep(self._keep_up, "limiter upkeep")),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain(DRAIN_S)
        await tasks.stop(self._tasks)
        await self._stack.aclose()

    async def drain(self, timeout_s: float) -> None:
        """Wait until every settlement is in Postgres, at most `timeout_s`."""
        await self._settling.drain(timeout_s)

    @property
    def in_grace(self) -> bool:
        """Whether Postgres is away and the local share decides."""
        return self._grace.active

    @property
    def settlements_dropped_total(self) -> int:
        """Given up for lack of memory: what their requests reserved comes back when their leases end."""
        return self._settling.dropped_total

    def refuses(self, limits: tuple[Limit, ...], tokens_max: int) -> Decision | None:
        return None if self._grace.active else self._refusal_cache.find(limits, tokens_max, self._now_us())

    def may_grant(self, limits: tuple[Limit, ...]) -> bool:
        """Whether requests under these limits can be admitted now, or will be as soon as a share has filled."""
        return not self._grace.active or self._grace.may_grant(limits)

    async def admit(self, demand: Demand) -> Decision:
        """Raises Unavailable when Postgres does not answer in time, and while it is away for what a local share can
        never grant.
        """
        prepared = self._prepare(demand)
        if prepared.blocked is not None:
            return claims.never(prepared.blocked)
        if not self._grace.active:
            tenant = demand.tenant_id
            if not self._held_up.may_ask(tenant):
                raise Unavailable(UNANSWERED, retry_after_ms=RETRY_AFTER_MS)
            try:
                decision = await self._admit(demand, prepared)
            except TimeoutError as error:
                # Overload, an outage, or a row that somebody holds: the upkeep task finds out which.
                note = self._held_up.unknown if isinstance(error, NoPlace) else self._held_up.unanswered
                note(tenant)
                self._in_doubt(demand)
                self._upkeep_due.set()
                raise Unavailable(UNANSWERED, retry_after_ms=RETRY_AFTER_MS) from error
            except pools.AWAY as error:
                self._held_up.answered(tenant)
                self._in_doubt(demand)
                self._lost(error)
            except BaseException:  # its client left; whatever else it is must not keep the tenant's next one out
                self._held_up.unknown(tenant)
                self._in_doubt(demand)
                raise
            else:
                self._held_up.answered(tenant)
                return decision
        decision = self._grace.admit(demand)
        if decision.refused is None:
            self._leases.open(demand, None)
        return decision

    def started(self, request_id: uuid.UUID) -> None:
        lease = self._leases.started(request_id)
        self._grace.started(request_id)
        if lease is not None and lease.epoch is not None:
            self._settling.started(request_id)

    async def settle(self, request_id: uuid.UUID, used: Used) -> None:
        lease = self._leases.close(request_id)
        if self._grace.settle(request_id, used):
            self._upkeep_due.set()
        if lease is None or lease.epoch is None:
            return
        if used.tokens <= 0:
            self._refusal_cache.forget()  # a settlement may refund a request
        queued = not lease.started or self._settling.is_starting(request_id)
        done = self._settling.put(request_id, used, lease.demand.tenant_id)
        try:
            if not self._grace.active:
                await asyncio.wait([done], timeout=SETTLE_WAIT_S)
        finally:
            if not done.done():
                self._overdue.add(Release(lease.demand, queued), done)

    def _prepare(self, demand: Demand) -> Prepared:
        """The prepared arguments of the demand's limits, cached by the identity of the tuple of limits: a frequent
        caller passes the same object each time. The cache keeps that object alive, so its identity stays unique.
        """
        prepared = self._prepared.get(id(demand.limits))
        if prepared is None:
            if len(self._prepared) >= PREPARED_MAX:
                self._prepared.clear()
            prepared = self._prepared[id(demand.limits)] = Prepared.of(demand)
        return prepared

    async def _admit(self, demand: Demand, prepared: Prepared) -> Decision:
        """The decision. A request that is refused only because settlements are late waits for them and asks again."""
        tenant = demand.tenant_id
        overdue = self._overdue.of(tenant)
        verdict = await self._ask(demand, prepared)
        if cures(demand, verdict, overdue) and await self._overdue.wait(tenant, OVERDUE_WAIT_S):
            verdict = await self._ask(demand, prepared)
        decision = claims.decision(prepared.claims, shortened(demand, verdict, self._overdue.of(tenant)))
        if decision.refused is not None:
            self._refusal_cache.note(demand.limits, decision, self._now_us())
        return decision

    async def _ask(self, demand: Demand, prepared: Prepared) -> Verdict:
        arguments = prepared.arguments(demand, self._gateway_id, LEASE_MS)
        [row] = await self._admissions.fetch(_ADMIT, *arguments, timeout_s=ADMIT_TIMEOUT_S)
        self._answered_us = self._now_us()
        if row["refused"] is None:
            self._leases.open(demand, row["epoch"])
        return _verdict(row)

    def _in_doubt(self, demand: Demand) -> None:
        """Refund an admission whose outcome is not known: it may have been reserved, and nobody will use it."""
        done = self._settling.put(demand.request_id, NOTHING, demand.tenant_id)
        self._overdue.add(Release(demand, queued=True), done)

    def _lost(self, error: BaseException) -> None:
        if not self._grace.active:
            self._log.error("limiter.postgres_away", gateways=self._gateways, error=repr(error))
            held = [(lease.demand, lease.started) for lease in self._leases]
            self._grace.start(self._gateways, held, answered_us=self._answered_us)
            self._upkeep_due.set()

    async def _keep_up(self) -> None:
        """The upkeep loop: renew leases, delete expired ones, pay debts; while Postgres is away, probe it."""
        while True:
            try:
                await self._upkeep()
            except pools.AWAY as error:
                self._lost(error)
            wait_s = PROBE_S if self._grace.active else RENEW_S
            with contextlib.suppress(TimeoutError):  # not wait_for: before Python 3.12 it can swallow a cancel
                async with asyncio.timeout(wait_s):
                    await self._upkeep_due.wait()
            self._upkeep_due.clear()

    async def _upkeep(self) -> None:
        self._gateways = await self._leases.renew()
        self._answered_us = self._now_us()
        await self._pay()
        if self._grace.active:
            self._grace.stop()
            self._log.info("limiter.postgres_back")

    async def _pay(self) -> None:
        debts = self._grace.take_debts()
        if not debts:
            return
        try:
            await pools.fetch(
                self._pool,
                _DEBIT,
                [claim.key for claim in debts],
                [claim.per_minute for claim in debts],
                [claim.burst for claim in debts],
                [claim.amount for claim in debts],
                timeout_s=DEBIT_TIMEOUT_S,
            )
        except pools.AWAY:
            self._grace.owe(debts)
            raise


def _verdict(row: asyncpg.Record) -> Verdict:
    """What `admit` returned. SQL numbers limits from 1."""
    return Verdict(
        refused=None if row["refused"] is None else row["refused"] - 1,
        retry_after_us=row["retry_after_us"],
        levels=tuple(Level(units, 0) for units in row["levels"]),
        held=tuple(row["held"]),
        missed=tuple(index - 1 for index in row["missed"]),
    )
