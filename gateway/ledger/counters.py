"""Stores what workers say they have billed, for reconciliation (`gateway/db/reconciliation.py`).

Every gateway writes the same rows. The greatest count wins, because a worker's counts only grow, and a worker has a new
name at each start.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import asyncpg

from gateway.db import pools
from shared import log, wire

PERIOD_S: Final = 10.0
STATEMENT_TIMEOUT_S: Final = 5.0

_KEEP: Final = (
    "INSERT INTO worker_counters AS c (worker, bills, prompt_tokens, completion_tokens, observed_at)"
    " SELECT w.*, now() FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[]) AS w (worker, bills, p, c)"
    " ORDER BY w.worker"
    " ON CONFLICT (worker) DO UPDATE SET bills = greatest(c.bills, excluded.bills),"
    " prompt_tokens = greatest(c.prompt_tokens, excluded.prompt_tokens),"
    " completion_tokens = greatest(c.completion_tokens, excluded.completion_tokens), observed_at = excluded.observed_at"
)
_FORGET: Final = "DELETE FROM worker_counters WHERE observed_at < now() - interval '100 days'"


class Counters:
    """`beats()` returns the last beats of the workers that are heard. `run` until cancelled."""

    def __init__(self, pool: asyncpg.Pool, beats: Callable[[], Sequence[wire.WorkerBeat]]) -> None:
        self._pool = pool
        self._beats = beats
        self._log = log.get("counters")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.keep()
            except pools.AWAY as error:
                self._log.debug("counters.postgres_away", error=repr(error))

    async def keep(self) -> None:
        """Store the counts, and delete workers of long ago. Raises what `pools.AWAY` names."""
        rows = [(b.worker, b.bills, b.billed_prompt_tokens, b.billed_completion_tokens) for b in self._beats()]
        if rows:
            await pools.fetch(self._pool, _KEEP, *zip(*rows, strict=True), timeout_s=STATEMENT_TIMEOUT_S)
        await pools.fetch(self._pool, _FORGET, timeout_s=STATEMENT_TIMEOUT_S)
