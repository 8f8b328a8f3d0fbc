"""Starts and settlements on their way to Postgres: batched, retried until they arrive, bounded.

While one batch is written the next gathers, so a busy gateway writes few large batches and an idle one settles at
once. What does not fit or never arrives is refunded in full when its lease expires.
"""

import asyncio
import uuid
from typing import Final

import asyncpg

from gateway.admission.cap import AMOUNT_MAX
from gateway.admission.limiter import Used
from gateway.db import pools
from shared import log

BATCH_MAX: Final = 500
PENDING_MAX: Final = 50_000
TIMEOUT_S: Final = 2.0
RETRY_S: Final = 0.5

_STARTED = "SELECT started($1)"
_SETTLE = "SELECT settle($1, $2, $3)"


class Settling:
    """Run `run` as a task; `started` and `put` from anywhere in the loop."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._log = log.get("limiter")
        self._started: dict[uuid.UUID, None] = {}  # in order of arrival
        self._waiting: dict[uuid.UUID, tuple[Used, asyncio.Future[None]]] = {}  # likewise
        self._wake = asyncio.Event()
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def started(self, request_id: uuid.UUID) -> None:
        if len(self._started) < PENDING_MAX and request_id not in self._waiting:
            self._started[request_id] = None
            self._wake.set()

    def put(self, request_id: uuid.UUID, used: Used) -> "asyncio.Future[None]":
        """Resolved once the settlement is in Postgres. The first amount for a request holds."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            return waiting[1]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= PENDING_MAX:
            self.dropped_total += 1
            done.set_result(None)
            return done
        self._waiting[request_id] = (used, done)
        self._wake.set()
        return done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._started or self._waiting:
                if not await self._write():
                    await asyncio.sleep(RETRY_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all settlements that are pending, at most so long."""
        pending = [done for _, done in self._waiting.values()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    async def _write(self) -> bool:
        """Starts before settlements: whether a request had started decides what its settlement gives back."""
        try:
            await self._write_starts()
            await self._write_settlements()
        except pools.AWAY as error:
            self._log.warning("limiter.settle_failed", pending=len(self._waiting), error=repr(error))
            return False
        return True

    async def _write_starts(self) -> None:
        batch = list(self._started)[:BATCH_MAX]
        if batch:
            await pools.fetch(self._pool, _STARTED, batch, timeout_s=TIMEOUT_S)
        for request_id in batch:
            self._started.pop(request_id, None)

    async def _write_settlements(self) -> None:
        batch = {
            request_id: waiting
            for request_id, waiting in list(self._waiting.items())[:BATCH_MAX]
            if request_id not in self._started  # more starts than one batch: its turn comes
        }
        if not batch:
            return
        tokens = [min(max(used.tokens, 0), AMOUNT_MAX) for used, _ in batch.values()]
        costs_micro = [min(max(used.cost_micro, 0), AMOUNT_MAX) for used, _ in batch.values()]
        await pools.fetch(self._pool, _SETTLE, list(batch), tokens, costs_micro, timeout_s=TIMEOUT_S)
        for request_id, (_, done) in batch.items():
            del self._waiting[request_id]
            if not done.done():
                done.set_result(None)
