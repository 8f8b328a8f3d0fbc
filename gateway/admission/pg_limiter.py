"""The limiter that is exact over any number of gateways: buckets and reservations in Postgres.

One round trip an admission, one (batched) a settlement. While Postgres cannot decide, a local share does
(`grace`). Every admission ends in exactly one refund: by `settle`, by the ledger, or, when this process dies, by the
lease that nobody renews.
"""

import asyncio
import contextlib
import time
import uuid
from types import TracebackType
from typing import Final, Self

import asyncpg

from gateway.admission import bucket
from gateway.admission.grace import Grace
from gateway.admission.limiter import Decision, Demand
from gateway.admission.local_limiter import milliseconds, never
from gateway.admission.settling import Settling
from gateway.db import pools
from gateway.errors import Unavailable
from shared import log, tasks

ADMIT_TIMEOUT_S: Final = 2.0
SETTLE_WAIT_S: Final = 0.05
LEASE_MS: Final = 15_000
RENEW_S: Final = 5.0
PROBE_S: Final = 0.5  # while Postgres is away
UPKEEP_TIMEOUT_S: Final = 2.0
DRAIN_S: Final = 3.0
EXPIRE_ROWS_MAX: Final = 1_000
RETRY_AFTER_MS: Final = 1_000
CONNECTIONS_KEPT: Final = 2  # for settlements and upkeep, whatever waits to be admitted

_ADMIT = "SELECT * FROM admit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"
_RENEW = "SELECT renew_leases($1, $2, $3)"
_EXPIRE = "SELECT expire_leases($1)"
_DEBIT = "SELECT debit_buckets($1, $2, $3, $4)"


class PgLimiter:
    """Implements `Limiter`; use with `async with`. `pool` is entered and left by the caller."""

    def __init__(self, pool: asyncpg.Pool, *, gateway_id: str) -> None:
        self._pool = pool
        self._gateway_id = gateway_id
        self._log = log.get("limiter")
        self._settling = Settling(pool)
        self._grace = Grace(lambda: time.monotonic_ns() // 1_000)
        self._open: set[uuid.UUID] = set()  # reserved in Postgres and not settled: whose leases to renew
        self._gateways = 1
        self._slots = asyncio.Semaphore(max(pool.get_max_size() - CONNECTIONS_KEPT, 1))
        self._upkeep_due = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(self._settling.run(), name="limiter settling"),
            asyncio.create_task(self._keep_up(), name="limiter upkeep"),
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._settling.drain(DRAIN_S)
        await tasks.stop(self._tasks)

    @property
    def in_grace(self) -> bool:
        """Whether Postgres is away and the local share decides."""
        return self._grace.active

    async def admit(self, demand: Demand) -> Decision:
        """Raises Unavailable when Postgres does not answer in time, and while it is away for what a local share can
        never grant.
        """
        if metric := bucket.blocked(demand):
            return never(metric)
        if not self._grace.active:
            try:
                async with asyncio.timeout(ADMIT_TIMEOUT_S), self._slots:
                    return await self._admit(demand)
            except TimeoutError as error:
                # Overload or an outage: a look from the upkeep will tell.
                self._in_doubt(demand)
                self._upkeep_due.set()
                raise Unavailable("rate limits could not be checked in time", retry_after_ms=RETRY_AFTER_MS) from error
            except pools.AWAY as error:
                self._in_doubt(demand)
                self._lost(error)
            except asyncio.CancelledError:
                self._in_doubt(demand)
                raise
        return self._grace.admit(demand)

    async def settle(self, request_id: uuid.UUID, tokens_used: int) -> None:
        if self._grace.settle(request_id, tokens_used):
            self._upkeep_due.set()
        elif request_id in self._open:
            self._open.remove(request_id)
            await asyncio.wait([self._settling.put(request_id, tokens_used)], timeout=SETTLE_WAIT_S)

    async def _admit(self, demand: Demand) -> Decision:
        claims = bucket.claims(demand)
        [row] = await pools.fetch(
            self._pool,
            _ADMIT,
            demand.request_id,
            demand.tenant_id,
            demand.api_key_id,
            self._gateway_id,
            LEASE_MS,
            min(demand.tokens, bucket.LIMIT_MAX),
            [claim.key for claim in claims],
            [claim.per_minute for claim in claims],
            [claim.burst for claim in claims],
            [claim.amount for claim in claims],
            [claim.key for claim in claims if claim.refundable],
            [claim.burst for claim in claims if claim.refundable],
            timeout_s=ADMIT_TIMEOUT_S,
        )
        states = tuple(bucket.state(claim, units) for claim, units in zip(claims, row["levels"], strict=True))
        if row["refused"] is None:
            self._open.add(demand.request_id)
            return Decision(refused_by=None, retry_after_ms=None, buckets=states)
        return Decision(
            refused_by=claims[row["refused"] - 1].metric,
            retry_after_ms=milliseconds(row["retry_after_us"]),
            buckets=states,
        )

    def _in_doubt(self, demand: Demand) -> None:
        """It may have been reserved, and nobody will use it."""
        self._settling.put(demand.request_id, 0)

    def _lost(self, error: BaseException) -> None:
        if not self._grace.active:
            self._log.error("limiter.postgres_away", gateways=self._gateways, error=repr(error))
            self._grace.start(self._gateways)
            self._upkeep_due.set()

    async def _keep_up(self) -> None:
        """Renew, expire, pay debts; while Postgres is away, look for it."""
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
        renewed = await pools.fetch(
            self._pool, _RENEW, self._gateway_id, list(self._open), LEASE_MS, timeout_s=UPKEEP_TIMEOUT_S
        )
        self._gateways = renewed[0][0]
        await pools.fetch(self._pool, _EXPIRE, EXPIRE_ROWS_MAX, timeout_s=UPKEEP_TIMEOUT_S)
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
                timeout_s=UPKEEP_TIMEOUT_S,
            )
        except pools.AWAY:
            self._grace.owe(debts)
            raise
