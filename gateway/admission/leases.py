"""The open requests of this gateway and the rows of `inflight` that stand for them.

A row counts as long as its lease, which this module renews. A gateway that was killed renews nothing, so its rows
lapse; one that was only cut off finds them lapsed, and its renewal makes them count again. When a crash of Postgres has
emptied the table (recognized by a new epoch), the rows of what is still open are written again, once; so are those of
requests that were admitted while Postgres was away.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import asyncpg

from gateway.admission.cap import AMOUNT_MAX
from gateway.admission.database_clock import DatabaseClock
from gateway.admission.limiter import Demand
from gateway.db import pools
from shared import log

LEASE_MS: Final = 15_000
TIMEOUT_S: Final = 2.0
EXPIRE_ROWS_MAX: Final = 1_000

_RENEW = "SELECT *, clock_us() AS now_us FROM renew($1, $2, $3)"
_RESTORE = "SELECT restore($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_EXPIRE = "SELECT expire_leases($1) AS lapsed"


@dataclass(slots=True)
class Lease:
    demand: Demand
    epoch: int | None  # of its row; None: it has none yet
    started: bool = False


class Leases:
    def __init__(self, pool: asyncpg.Pool, gateway_id: str, clock: DatabaseClock) -> None:
        self._pool = pool
        self._gateway_id = gateway_id
        self._clock = clock
        self._log = log.get("limiter")
        self._open: dict[uuid.UUID, Lease] = {}

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._open.values())

    def open(self, demand: Demand, epoch: int | None) -> None:
        self._open.setdefault(demand.request_id, Lease(demand, epoch))

    def started(self, request_id: uuid.UUID) -> Lease | None:
        """The lease if it is open and had not started before."""
        lease = self._open.get(request_id)
        if lease is None or lease.started:
            return None
        lease.started = True
        return lease

    def close(self, request_id: uuid.UUID) -> Lease | None:
        return self._open.pop(request_id, None)

    async def renew(self) -> int:
        """How many gateways are alive. Raises what `pools.AWAY` names."""
        written = [request_id for request_id, lease in self._open.items() if lease.epoch is not None]
        [row] = await pools.fetch(self._pool, _RENEW, self._gateway_id, written, LEASE_MS, timeout_s=TIMEOUT_S)
        await self._clock.observe(row["now_us"])
        await self._restore(row["epoch"])
        [expired] = await pools.fetch(self._pool, _EXPIRE, EXPIRE_ROWS_MAX, timeout_s=TIMEOUT_S)
        if expired["lapsed"]:
            self._log.warning("limiter.leases_lapsed", requests=expired["lapsed"])
        return row["gateways"]

    async def _restore(self, epoch: int) -> None:
        lost = [lease for lease in self._open.values() if lease.epoch != epoch]
        if not lost:
            return
        demands = [lease.demand for lease in lost]
        await pools.fetch(
            self._pool,
            _RESTORE,
            self._gateway_id,
            LEASE_MS,
            [demand.request_id for demand in demands],
            [demand.tenant_id for demand in demands],
            [demand.api_key_id for demand in demands],
            [demand.model_id for demand in demands],
            [lease.started for lease in lost],
            [min(demand.tokens, AMOUNT_MAX) for demand in demands],
            [min(demand.cost_micro, AMOUNT_MAX) for demand in demands],
            timeout_s=TIMEOUT_S,
        )
        self._log.info("limiter.leases_restored", requests=len(lost), epoch=epoch)
        for lease in lost:
            lease.epoch = epoch
