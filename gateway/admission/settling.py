"""Starts and settlements on their way to Postgres: in batches, retried until they arrive, in bounded memory.

While one batch is written the next one fills, so a busy gateway writes few large batches and an idle one settles at
once. Starts are held back for a moment to fill a batch, since nobody waits for them; if the request meanwhile ends with
something used, its start is not written at all, because the settlement implies it. What does not fit or never arrives
is refunded in full when its lease expires.
"""

import asyncio
import uuid
from typing import Final

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

_STARTED = "SELECT started($1::text::uuid[])"
_SETTLE = "SELECT settle($1::text::uuid[], $2::text::bigint[], $3::text::bigint[])"


class Settling:
    """Run `run` as a task; `started` and `put` from anywhere in the loop."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._log = log.get("limiter")
        self._started: dict[uuid.UUID, None] = {}  # in order of arrival
        self._waiting: dict[uuid.UUID, tuple[Used, asyncio.Future[None]]] = {}  # likewise
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

    def put(self, request_id: uuid.UUID, used: Used) -> "asyncio.Future[None]":
        """A future that resolves when the settlement is in Postgres. Only the first amount for a request counts."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            return waiting[1]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= PENDING_MAX:
            self.dropped_total += 1
            done.set_result(None)
            return done
        if used.tokens > 0:
            self._started.pop(request_id, None)
        elif request_id in self._started:
            self._starts_due = True
        self._waiting[request_id] = (used, done)
        self._wake.set()
        return done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._starts_due or self._waiting:
                if not await self._write():
                    await asyncio.sleep(RETRY_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all pending settlements, at most so long."""
        pending = [done for _, done in self._waiting.values()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    def _have_starts_written(self) -> None:
        self._gathering = None
        self._starts_due = True
        self._wake.set()

    async def _write(self) -> bool:
        """Starts before settlements: whether a request had started decides what its settlement gives back."""
        try:
            if self._starts_due:
                await self._write_starts()
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
        batch = {
            request_id: waiting
            for request_id, waiting in list(self._waiting.items())[:BATCH_MAX]
            if request_id not in self._started  # more starts than one batch: its turn comes
        }
        if not batch:
            return
        tokens = literal([min(max(used.tokens, 0), AMOUNT_MAX) for used, _ in batch.values()])
        costs_micro = literal([min(max(used.cost_micro, 0), AMOUNT_MAX) for used, _ in batch.values()])
        await self._lanes.fetch(_SETTLE, literal(batch), tokens, costs_micro, timeout_s=TIMEOUT_S)
        for request_id, (_, done) in batch.items():
            del self._waiting[request_id]
            if not done.done():
                done.set_result(None)
