"""Writes usage events to Postgres, each once, however often and to however many ledgers it is delivered.

Invariants: when `write` returns, every payload is in `usage_events` (now or before) or in `usage_rejected`, committed.
An event is priced in the transaction that inserts it, and charged for only if that really inserted it.
"""

import hashlib
import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from gateway.db.arrays import literal
from gateway.ledger import rating, rows
from gateway.ledger.rows import Row
from shared import log

STATEMENT_TIMEOUT_S: Final = 10.0
PARTITIONS_DAYS: Final = 7

_TYPES: Final = {
    "request_id": "uuid",
    "attempt": "smallint",
    "final": "boolean",
    "occurred_at": "timestamptz",
    "tenant_id": "uuid",
    "api_key_id": "uuid",
    "model_id": "uuid",
    "tier": "smallint",
    "prompt_tokens": "bigint",
    "cached_tokens": "bigint",
    "completion_tokens": "bigint",
    "recomputed_tokens": "bigint",
    "finish": "text",
    "ttft_ms": "bigint",
    "total_ms": "bigint",
    "worker": "text",
    "gateway": "text",
    "preemptions": "integer",
    "price_id": "uuid",
    "cost_micro": "bigint",
}
_COLUMNS: Final = ", ".join(_TYPES)
_TYPED: Final = ", ".join(f"{column} {kind}" for column, kind in _TYPES.items())


class Charge(msgspec.Struct, frozen=True, kw_only=True):
    """A usage event that was booked just now, and its cost. Fields are columns that the insert returns."""

    request_id: uuid.UUID
    occurred_at: datetime
    tenant_id: uuid.UUID
    api_key_id: uuid.UUID
    model_id: uuid.UUID
    prompt_tokens: int
    completion_tokens: int
    cost_micro: int | None  # None: no price applied


# Rows go in key order, so that two ledgers with the same redelivered events wait for each other and never deadlock.
_INSERT: Final = (  # made of our own column names
    f"INSERT INTO usage_events ({_COLUMNS})"  # noqa: S608
    f" SELECT * FROM json_to_recordset($1::text::json) AS event ({_TYPED}) ORDER BY request_id, attempt"
    " ON CONFLICT (request_id, attempt, occurred_at) DO NOTHING"
    f" RETURNING {', '.join(Charge.__struct_fields__)}"
)
_SPEND: Final = (
    "SELECT spend($1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::timestamptz[], $5::text::bigint[],"
    " $6::text::bigint[])"
)
_CLOSE: Final = "SELECT close_reservations($1::text::uuid[], $2::text::timestamptz[])"
_REJECT: Final = "INSERT INTO usage_rejected (digest, payload, reason) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"

# Classes of errors that mean that the row is at fault: data (22), integrity (23).
_FAULTY_ROW: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)


class Writer:
    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._log = log.get("ledger")
        self.inserted_total = 0
        self.repeated_total = 0
        self.rejected_total = 0
        self.unpriced_total = 0

    async def write(self, payloads: Sequence[bytes]) -> None:
        """Raises what `pools.AWAY` names when Postgres cannot take them now; then nothing is known to be written."""
        good: list[tuple[Row, bytes]] = []
        for payload in payloads:
            try:
                good.append((rows.parse(payload), payload))
            except ValueError as error:
                await self._reject(payload, str(error))
        await self._write(good)

    async def upkeep(self) -> None:
        """Create the partitions of the coming days, and prune the feed of changes. Raises what `pools.AWAY` names."""
        async with self._pool.acquire(timeout=STATEMENT_TIMEOUT_S) as connection:
            await connection.execute("SELECT make_usage_partitions($1)", PARTITIONS_DAYS, timeout=STATEMENT_TIMEOUT_S)
            await connection.execute("SELECT prune_config_changes()", timeout=STATEMENT_TIMEOUT_S)
            await connection.execute("SELECT prune_budget_state()", timeout=STATEMENT_TIMEOUT_S)

    async def _write(self, events: list[tuple[Row, bytes]]) -> None:
        if not events:
            return
        try:
            await self._transaction([row for row, _ in events])
        except _FAULTY_ROW as error:
            if len(events) == 1:
                await self._reject(events[0][1], f"{type(error).__name__}: {error}")
                return
            middle = len(events) // 2
            await self._write(events[:middle])
            await self._write(events[middle:])

    async def _transaction(self, batch: list[Row]) -> None:
        final = [row for row in batch if row.final]
        async with self._pool.acquire(timeout=STATEMENT_TIMEOUT_S) as connection, connection.transaction():
            charges = await _insert(connection, batch)
            if charges:
                await connection.execute(_SPEND, *_spent(charges), timeout=STATEMENT_TIMEOUT_S)
            if final:
                await connection.execute(
                    _CLOSE,
                    literal([row.request_id for row in final]),
                    literal([row.occurred_at for row in final]),
                    timeout=STATEMENT_TIMEOUT_S,
                )
        self.inserted_total += len(charges)
        self.repeated_total += len(batch) - len(charges)
        self.unpriced_total += sum(charge.cost_micro is None for charge in charges)

    async def _reject(self, payload: bytes, reason: str) -> None:
        async with self._pool.acquire(timeout=STATEMENT_TIMEOUT_S) as connection:
            await connection.execute(
                _REJECT, hashlib.sha256(payload).digest(), payload, reason, timeout=STATEMENT_TIMEOUT_S
            )
        self.rejected_total += 1
        self._log.error("ledger.rejected", reason=reason, bytes=len(payload))


def _spent(charges: list[Charge]) -> list[str]:
    """The arguments of the SQL function `spend`, one array per column."""
    return [
        literal([charge.tenant_id for charge in charges]),
        literal([charge.api_key_id for charge in charges]),
        literal([charge.model_id for charge in charges]),
        literal([charge.occurred_at for charge in charges]),
        literal([charge.prompt_tokens + charge.completion_tokens for charge in charges]),
        literal([charge.cost_micro or 0 for charge in charges]),
    ]


async def _insert(connection: PoolConnectionProxy, batch: list[Row]) -> list[Charge]:
    """Insert what is not there yet, priced, and return what was inserted."""
    ratings = await rating.rate(connection, batch, timeout_s=STATEMENT_TIMEOUT_S)
    rated = [
        {**msgspec.structs.asdict(row), "price_id": price, "cost_micro": cost}
        for row, (price, cost) in zip(batch, ratings, strict=True)
    ]
    inserted = await connection.fetch(_INSERT, msgspec.json.encode(rated).decode(), timeout=STATEMENT_TIMEOUT_S)
    return [Charge(**record) for record in inserted]
