"""Starts and settlements on their way to Postgres: in batches, retried until they arrive, in bounded memory.

While one batch is written the next one fills, so a busy gateway writes few large batches and an idle one settles at
once. Starts are delayed briefly to fill a batch, since nobody waits for them. If the request has meanwhile ended with
something used, its start is not written at all, because the settlement implies it. What does not fit or never arrives
is refunded in full when its lease expires.

A batch is one statement, and another transaction may hold a row that it needs, such as one tenant's limits. So a batch
that is not written in time is written tenant by tenant, and a tenant whose part still fails is set aside until a retry
of its own succeeds: no tenant's settlements wait for another's rows.
"""

import asyncio
import uuid
from itertools import islice
from typing import Final, NamedTuple

import asyncpg

from gateway.admission.cap import AMOUNT_MAX
from gateway.admission.limiter import Used
from gateway.db import pools
from gateway.db.arrays import literal
from gateway.db.lanes import Lanes
from shared import log

BATCH_MAX: Final = 500
PENDING_MAX: Final = 50_000
TIMEOUT_S: Final = 2.0
RETRY_S: Final = 0.5
GATHER_S: Final = 0.02  # how long a start waits
APART_S: Final = 1.0  # timeout of one tenant's part of a batch that was not written in time
APART_FAILURES_MAX: Final = 2  # so many before the first success mean that Postgres itself is away
HELD_UP_RETRY_S: Final = 2.0

_STARTED = "SELECT started($1::text::uuid[])"
_SETTLE = "SELECT settle($1::text::uuid[], $2::text::bigint[], $3::text::bigint[])"


_HELD: Final = (TimeoutError, asyncpg.LockNotAvailableError)


class _Settlement(NamedTuple):
    used: Used
    tenant_id: uuid.UUID
    done: "asyncio.Future[None]"


class Settling:
    """Run `run` as a task; `started` and `put` from anywhere in the loop."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._log = log.get("limiter")
        self._started: dict[uuid.UUID, None] = {}  # in order of arrival
        self._waiting: dict[uuid.UUID, _Settlement] = {}  # likewise
        self._held_up: dict[uuid.UUID, None] = {}  # tenants set aside, the one tried longest ago first
        self._trying: asyncio.TimerHandle | None = None  # until the next of these is retried
        self._try_due = False
        self._gathering: asyncio.TimerHandle | None = None  # until starts are written
        self._starts_due = False
        self._wake = asyncio.Event()
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def started(self, request_id: uuid.UUID) -> None:
        if len(self._started) >= PENDING_MAX or request_id in self._waiting:
            return
        self._started[request_id] = None
        if self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._have_starts_written)

    def is_starting(self, request_id: uuid.UUID) -> bool:
        """Whether its start is yet to be written."""
        return request_id in self._started

    def put(self, request_id: uuid.UUID, used: Used, tenant_id: uuid.UUID) -> "asyncio.Future[None]":
        """A future that resolves when the settlement is in Postgres. Only the first amount for a request counts."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            return waiting.done
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= PENDING_MAX:
            self.dropped_total += 1
            done.set_result(None)
            return done
        if used.tokens > 0:
            self._started.pop(request_id, None)
        elif request_id in self._started:
            self._starts_due = True
        self._waiting[request_id] = _Settlement(used, tenant_id, done)
        self._wake.set()
        return done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._starts_due or self._try_due or self._has_next():
                if not await self._write():
                    await asyncio.sleep(RETRY_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all pending settlements, at most `timeout_s`."""
        pending = [settlement.done for settlement in self._waiting.values()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    def _have_starts_written(self) -> None:
        self._gathering = None
        self._starts_due = True
        self._wake.set()

    async def _write(self) -> bool:
        """Starts before settlements: whether a request had started decides how much its settlement refunds."""
        try:
            if self._starts_due:
                await self._write_starts()
            if self._try_due:
                await self._try_held_up()
            await self._write_settlements()
        except pools.AWAY as error:
            self._log.warning("limiter.settle_failed", pending=len(self._waiting), error=repr(error))
            return False
        return True

    async def _write_starts(self) -> None:
        batch = list(self._started)[:BATCH_MAX]
        if batch:
            await self._lanes.fetch(_STARTED, literal(batch), timeout_s=TIMEOUT_S)
        for request_id in batch:
            self._started.pop(request_id, None)
        self._starts_due = bool(self._started)

    async def _write_settlements(self) -> None:
        batch = self._next()
        if not batch:
            return
        try:
            await self._settle(batch, TIMEOUT_S)
        except _HELD:
            parts = self._by_tenant(batch)
            if len(parts) == 1:
                raise
            await self._settle_apart(parts)

    def _has_next(self) -> bool:
        return any(settlement.tenant_id not in self._held_up for settlement in self._waiting.values())

    def _next(self) -> list[uuid.UUID]:
        """The next batch of settlements, without tenants that are set aside and requests whose start is yet to be
        written.
        """
        turns = (
            request_id
            for request_id, settlement in self._waiting.items()
            if request_id not in self._started and settlement.tenant_id not in self._held_up
        )
        return list(islice(turns, BATCH_MAX))

    def _by_tenant(self, batch: list[uuid.UUID]) -> dict[uuid.UUID, list[uuid.UUID]]:
        """The batch by tenant. Tenants that arrived last come first: they have not been delayed yet."""
        parts: dict[uuid.UUID, list[uuid.UUID]] = {}
        for request_id in reversed(batch):
            parts.setdefault(self._waiting[request_id].tenant_id, []).append(request_id)
        return parts

    async def _settle_apart(self, parts: dict[uuid.UUID, list[uuid.UUID]]) -> None:
        """Write each tenant's part on its own. Raises if Postgres itself seems not to answer."""
        held_up: list[uuid.UUID] = []
        for tenant_id, part in parts.items():
            try:
                await self._settle(part, APART_S)
            except _HELD:
                held_up.append(tenant_id)
                if held_up == list(parts)[:APART_FAILURES_MAX]:
                    raise
        if held_up:
            self._hold_up(held_up)

    def _hold_up(self, tenants: list[uuid.UUID]) -> None:
        self._log.warning("limiter.settlements_held_up", tenants=[str(tenant_id) for tenant_id in tenants])
        self._held_up.update(dict.fromkeys(tenants))
        if self._trying is None:
            self._trying = asyncio.get_running_loop().call_later(HELD_UP_RETRY_S, self._have_one_tried)

    def _have_one_tried(self) -> None:
        self._trying, self._try_due = None, bool(self._held_up)
        self._wake.set()

    async def _try_held_up(self) -> None:
        """Retry the tenant that was tried longest ago. If it succeeds, all are assumed to be free again."""
        self._try_due = False
        tenant_id = next(iter(self._held_up))
        del self._held_up[tenant_id]
        part = [request_id for request_id in self._next() if self._waiting[request_id].tenant_id == tenant_id]
        try:
            await self._settle(part, APART_S)
        except _HELD:
            self._hold_up([tenant_id])
        else:
            self._held_up.clear()

    async def _settle(self, batch: list[uuid.UUID], timeout_s: float) -> None:
        used = [self._waiting[request_id].used for request_id in batch]
        tokens = literal([min(max(one.tokens, 0), AMOUNT_MAX) for one in used])
        costs_micro = literal([min(max(one.cost_micro, 0), AMOUNT_MAX) for one in used])
        await self._lanes.fetch(_SETTLE, literal(batch), tokens, costs_micro, timeout_s=timeout_s)
        for request_id in batch:
            done = self._waiting.pop(request_id).done
            if not done.done():
                done.set_result(None)
