"""Compares what workers say they have billed with what is booked, and rollups with the lines that they sum.

A worker counts a bill when it hands it over for sending, and sends its counts with every beat; a gateway stores the
latest counts (`worker_counters`). So nothing of a living worker may be missing once everything that was durable at that
beat is booked. Of a killed worker, bills made after its last beat are booked but not counted. Bills that a gateway
wrote for a lost worker have the finish `lost`.
"""

from datetime import datetime

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """`missing` tokens were counted by the worker and are not booked. A positive number is drift."""

    worker: str
    observed_at: datetime
    bills: int
    booked: int
    tokens: int
    booked_tokens: int

    @property
    def missing(self) -> int:
        return max(0, self.tokens - self.booked_tokens)


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    complete_until: datetime
    pending: int
    observed_at: datetime
    rejected: int


_WORKERS = text(
    "WITH counted AS (SELECT * FROM worker_counters WHERE observed_at >= :since),"
    " booked AS ("
    "   SELECT worker, count(*) AS bills, sum(prompt_tokens + completion_tokens)::bigint AS tokens FROM usage_events"
    "   WHERE finish <> 'lost' AND worker IN (SELECT worker FROM counted)"
    "     AND occurred_at >= (SELECT min(first_observed_at) - interval '1 hour' FROM counted)"
    "   GROUP BY worker)"
    " SELECT c.worker, c.observed_at, c.bills, coalesce(b.bills, 0) AS booked,"
    "   c.prompt_tokens + c.completion_tokens AS tokens, coalesce(b.tokens, 0) AS booked_tokens"
    " FROM counted c LEFT JOIN booked b USING (worker) ORDER BY c.worker"
)
_COMPLETENESS = text("SELECT complete_until, pending, observed_at, rejected FROM billing_completeness")
_ROLLUPS = text("SELECT count(*) FROM rollup_drift(:since, :until)")


async def workers(connection: AsyncConnection, *, since: datetime) -> list[WorkerRow]:
    """Workers heard at or after `since`."""
    rows = (await connection.execute(_WORKERS, {"since": since})).mappings()
    return [WorkerRow(**row) for row in rows]


def booked(counted: list[WorkerRow], later: list[WorkerRow]) -> list[WorkerRow]:
    """The counts of `counted`, each with the amounts that the later look found booked."""
    by_worker = {row.worker: row for row in later}
    return [
        msgspec.structs.replace(row, booked=found.booked, booked_tokens=found.booked_tokens)
        for row in counted
        if (found := by_worker.get(row.worker)) is not None
    ]


async def completeness(connection: AsyncConnection) -> Completeness | None:
    """Until when bills are complete; None before any ledger has looked."""
    row = (await connection.execute(_COMPLETENESS)).mappings().one_or_none()
    return None if row is None else Completeness(**row)


async def rollup_drift(connection: AsyncConnection, *, since: datetime, until: datetime) -> int:
    """How many hourly and daily rows of these days differ from the sums of their lines."""
    return int((await connection.execute(_ROLLUPS, {"since": since.date(), "until": until.date()})).scalar_one())
