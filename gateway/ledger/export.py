"""Exports of bills: the lines of a period, in a fixed order, into a file, with a record of what was exported.

Transactions as well as times decide which lines an export holds (`Bounds`), so that a repetition holds the same ones. A
closed period keeps its lines for ever; a line that comes later for it is in the next period's export, with its own
time. Closed periods follow one another without a gap, the first one from the first line on. Invariant: each line is in
exactly one closing export. Lines are streamed, so memory is constant.
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Protocol

import asyncpg
import msgspec

Format = Literal["csv", "parquet"]
Line = tuple[object, ...]

CLOSES_AFTER: Final = timedelta(hours=1)  # longer than a request can run that began at the period's end
LINES_AT_ONCE: Final = 5_000

COLUMNS: Final = {
    "kind": "text",
    "request_id": "uuid",
    "attempt": "integer",
    "adjustment_id": "uuid",
    "occurred_at": "time",
    "tenant_id": "uuid",
    "tenant": "text",
    "api_key_id": "uuid",
    "model_id": "uuid",
    "model": "text",
    "tier": "integer",
    "prompt_tokens": "integer",
    "cached_tokens": "integer",
    "completion_tokens": "integer",
    "recomputed_tokens": "integer",
    "finish": "text",
    "price_id": "uuid",
    "currency": "text",
    "cost_micro": "integer",
    "reason": "text",
}
"""Columns of `billing_lines`, in the order of the file, and what kind of value they hold."""

_IN_PERIOD: Final = "occurred_at >= $1 AND occurred_at < $2 AND xid < $3::text::xid8"
_LATE: Final = "occurred_at < $1 AND xid >= $4::text::xid8 AND xid < $3::text::xid8"
_CLOSED: Final = (
    "SELECT until_xid::text, late_xid::text FROM billing_exports WHERE closing AND period_from = $1 AND period_to = $2"
)
_CUT_OFF: Final = (
    "SELECT EXISTS (SELECT FROM usage_lines WHERE occurred_at >= $1 AND occurred_at < $2 AND xid >= $3::text::xid8)"
)
_LAST_CLOSED: Final = "SELECT max(period_to) FROM billing_exports WHERE closing"
_FIRST_LINE: Final = "SELECT min(occurred_at) FROM billing_lines WHERE occurred_at < $1 AND xid < $2::text::xid8"
_ORDER: Final = "occurred_at, request_id, attempt, adjustment_id"
_LINES: Final = f"SELECT {', '.join(COLUMNS)} FROM billing_lines WHERE {{}} ORDER BY {_ORDER}"  # noqa: S608  our own names
_ON_TIME: Final = _LINES.format(_IN_PERIOD)
_WITH_LATE: Final = _LINES.format(f"(({_IN_PERIOD}) OR ({_LATE}))")


class NotComplete(Exception):
    """The period cannot be closed now; the message says why."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Lines that occurred in [period_from, period_to) and were written before `until_xid`; and, when the period before
    was closed, those that occurred earlier and were written at or after `late_xid`, its own end.
    """

    period_from: datetime
    period_to: datetime
    until_xid: str
    late_xid: str | None
    closing: bool


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    row_count: int
    total_micro: int
    unpriced: int
    sha256: bytes  # of the file


class LineWriter(Protocol):
    def write(self, lines: list[Line]) -> None: ...
    def close(self) -> None: ...


async def bounds(connection: asyncpg.Connection, start: datetime, end: datetime, *, close: bool) -> Bounds:
    """What an export of [start, end) contains now, or contained when that period was closed. Raises NotComplete if it
    is to be closed and cannot be yet.
    """
    closed = await connection.fetchrow(_CLOSED, start, end)
    if closed is not None:
        until, late = closed
        return Bounds(period_from=start, period_to=end, until_xid=str(until), late_xid=late, closing=False)
    if close:
        await _check_complete(connection, start, end)
    until = str(await connection.fetchval("SELECT lines_end()::text"))
    if close:
        await _check_none_left_out(connection, start, end, until)
    before = "SELECT until_xid::text FROM billing_exports WHERE closing AND period_to = $1"
    late = await connection.fetchval(before, start)
    return Bounds(period_from=start, period_to=end, until_xid=until, late_xid=late, closing=close)


async def write(connection: asyncpg.Connection, within: Bounds, writer: LineWriter, path: Path) -> Exported:
    """Every line within the bounds through `writer`, which writes to `path`, and closes it."""
    rows = total = unpriced = 0
    async with aclosing(_lines(connection, within)) as batches:
        async for batch in batches:
            writer.write(batch)
            costs = [line[-2] for line in batch]
            rows += len(batch)
            total += sum(cost for cost in costs if isinstance(cost, int))
            unpriced += costs.count(None)
    writer.close()
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return Exported(row_count=rows, total_micro=total, unpriced=unpriced, sha256=digest)


async def record(connection: asyncpg.Connection, within: Bounds, form: Format, exported: Exported) -> None:
    """Raises asyncpg.ExclusionViolationError if an overlapping period was closed in the meantime."""
    await connection.execute(
        "INSERT INTO billing_exports (period_from, period_to, late_xid, until_xid, closing, format, row_count,"
        " total_micro, sha256) VALUES ($1, $2, $3::text::xid8, $4::text::xid8, $5, $6, $7, $8, $9)",
        within.period_from,
        within.period_to,
        within.late_xid,
        within.until_xid,
        within.closing,
        form,
        exported.row_count,
        exported.total_micro,
        exported.sha256,
    )


async def _check_complete(connection: asyncpg.Connection, start: datetime, end: datetime) -> None:
    last = await connection.fetchval(_LAST_CLOSED)
    if last is not None and start < last:
        raise NotComplete("a period that overlaps or follows is closed already: periods are closed in their order")
    if last is not None and start > last:
        raise NotComplete(f"the next period to be closed begins where the last one ended, at {_utc(last)}")
    complete = await connection.fetchval("SELECT complete_until FROM usage_completeness")
    if complete is None or complete < end + CLOSES_AFTER:
        known = "not known" if complete is None else _utc(complete)
        needed = _utc(end + CLOSES_AFTER)
        raise NotComplete(f"the period can be closed when bills are complete until {needed}; that is {known} now")


async def _check_none_left_out(connection: asyncpg.Connection, start: datetime, end: datetime, until: str) -> None:
    """That no line is cut off by `until`, nor, when this is the first period to be closed, by its start."""
    if await connection.fetchval(_CUT_OFF, start, end, until):
        raise NotComplete("a transaction that began before the last bills is still open: try again when it has ended")
    if await connection.fetchval(_LAST_CLOSED) is None:
        first = await connection.fetchval(_FIRST_LINE, start, until)
        if first is not None:
            raise NotComplete(f"no period is closed yet, and bills begin at {_utc(first)}: close from there on")


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


async def _lines(connection: asyncpg.Connection, within: Bounds) -> AsyncGenerator[list[Line]]:
    values = [within.period_from, within.period_to, within.until_xid]
    statement = _ON_TIME
    if within.late_xid is not None:
        statement = _WITH_LATE
        values.append(within.late_xid)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        cursor = await connection.cursor(statement, *values)
        while batch := await cursor.fetch(LINES_AT_ONCE):
            yield [tuple(line) for line in batch]
