"""Settlements on their way to Postgres: batched, retried until they arrive, bounded.

While one batch is written the next gathers, so a busy gateway writes few large batches and an idle one settles at
once. What does not fit or never arrives is refunded in full when its lease expires.
"""

import asyncio
import uuid
from typing import Final

import asyncpg

from gateway.admission.bucket import LIMIT_MAX
from gateway.db import pools
from shared import log

BATCH_MAX: Final = 500
PENDING_MAX: Final = 50_000
TIMEOUT_S: Final = 2.0
RETRY_S: Final = 0.5

_SETTLE = "SELECT settle($1, $2)"


class Settling:
    """Run `run` as a task; `put` from anywhere in the loop."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._log = log.get("limiter")
        self._waiting: dict[uuid.UUID, tuple[int, asyncio.Future[None]]] = {}  # in order of arrival
        self._wake = asyncio.Event()
        self.dropped_total = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request_id: uuid.UUID, tokens_used: int) -> "asyncio.Future[None]":
        """Resolved once the settlement is in Postgres. The first amount for a request holds."""
        waiting = self._waiting.get(request_id)
        if waiting is not None:
            return waiting[1]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= PENDING_MAX:
            self.dropped_total += 1
            done.set_result(None)
            return done
        self._waiting[request_id] = (min(max(tokens_used, 0), LIMIT_MAX), done)
        self._wake.set()
        return done

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                if not await self._write():
                    await asyncio.sleep(RETRY_S)

    async def drain(self, timeout_s: float) -> None:
        """Wait for all that is pending, at most so long."""
        pending = [done for _, done in self._waiting.values()]
        if pending:
            await asyncio.wait(pending, timeout=timeout_s)

    async def _write(self) -> bool:
        batch = dict(list(self._waiting.items())[:BATCH_MAX])
        try:
            await pools.fetch(
                self._pool, _SETTLE, list(batch), [used for used, _ in batch.values()], timeout_s=TIMEOUT_S
            )
        except pools.AWAY as error:
            self._log.warning("limiter.settle_failed", pending=len(self._waiting), error=repr(error))
            return False
        for request_id, (_, done) in batch.items():
            del self._waiting[request_id]
            if not done.done():
                done.set_result(None)
        return True
