"""`forebay usage`: what was used, from the lines that bills are made of; corrections, checks and exports."""

import asyncio
import sys
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import cyclopts
import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cli import database, table
from cli.errors import CommandError
from cli.moments import utc
from cli.whole_numbers import whole
from gateway.db import adjustments, reconciliation, usage
from gateway.db.adjustments import MICRO_MAX
from gateway.db.reconciliation import Completeness, WorkerRow

app = cyclopts.App(name="usage", help="Show, export, correct and check what was used.")
app.command("cli.usage_export:export", name="export", help="Write a period's bill to a file.")

COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "cost_micro", "unpriced")
DRIFT_MAX = 1e-4  # as a share of the tokens that a worker counted
LOOK_AGAIN_S = 1.0
SETTLE = timedelta(seconds=5)  # after which counted bills are durable in NATS, unless NATS is away

Days = Annotated[int, whole(1, 3_650)]
Seconds = Annotated[int, whole(0, 86_400)]

T = TypeVar("T")


def _in_transaction(work: Callable[[AsyncConnection], Coroutine[Any, Any, T]]) -> T:
    async def run(engine: AsyncEngine) -> T:
        async with engine.begin() as connection:
            return await work(connection)

    return database.run(run)


@app.command
def show(
    *, tenant: str | None = None, since: datetime | None = None, until: datetime | None = None, json: bool = False
) -> None:
    """Requests, tokens and cost by tenant and model.

    Parameters
    ----------
    tenant
        Only this tenant's.
    since
        Only requests made at or after this time (ISO 8601, UTC unless it says otherwise).
    until
        Only requests made before this time.
    json
        One JSON object a line.
    """
    table.show_rows(
        database.run(lambda engine: usage.totals(engine, tenant=tenant, since=utc(since), until=utc(until))),
        ("tenant", "model", "requests", "prompt tokens", "cached", "output tokens", "micro-units", "unpriced"),
        lambda row: (row.tenant, row.model, *(f"{getattr(row, name):,}" for name in COUNTS)),
        json=json,
    )


@app.command
def adjust(request: uuid.UUID, /, *, micro: Annotated[int, whole(-MICRO_MAX, MICRO_MAX)], reason: str) -> None:
    """Correct the bill of REQUEST by a line of its own; the event stays as it is.

    Parameters
    ----------
    request
        The x-request-id of its answer.
    micro
        What is added, in micro-units; negative gives back, at most what the request has cost.
    reason
        For whoever reads the bill.
    """
    made = database.run(
        lambda engine: adjustments.adjust(engine, request, micro=micro, reason=reason, by=database.author())
    )
    print(f"adjustment {made.id} of {micro:+,} micro-units to request {request}, attempt {made.attempt}")


@app.command
def rebuild(*, since: datetime, until: datetime) -> None:
    """Make the hourly and daily sums of these days anew.

    Parameters
    ----------
    since
        The first day (UTC).
    until
        The day after the last one.
    """
    first, end = (utc(moment).astimezone(UTC).date() for moment in (since, until))
    if first >= end:
        raise CommandError("the days end before they begin")
    days = {"since": first, "until": end}
    _in_transaction(lambda connection: connection.execute(text("SELECT rebuild_rollups(:since, :until)"), days))
    print(f"sums of {first} to {end} made anew")


@app.command
def completeness(*, json: bool = False) -> None:
    """Until when bills are complete: every event that NATS had acknowledged before is booked.

    Parameters
    ----------
    json
        One JSON object.
    """
    seen = _in_transaction(reconciliation.completeness)
    if seen is None:
        raise CommandError("no ledger has looked yet")
    if json:
        print(msgspec.json.encode(seen).decode())
        return
    print(f"complete until {seen.complete_until:%Y-%m-%d %H:%M:%S} UTC; {seen.pending:,} events wait in NATS")
    print(
        f"{seen.rejected:,} events are set aside in usage_rejected; looked at {seen.observed_at:%Y-%m-%d %H:%M:%S} UTC"
    )


@app.command
def reconcile(*, days: Days = 1, wait_s: Seconds = 30, json: bool = False) -> None:
    """Compare what workers counted with what is booked, and sums with the lines they are of. Ends with 1 on drift.

    Parameters
    ----------
    days
        Workers that were heard within so many days, and the sums of these days.
    wait_s
        How long to wait, where tokens are missing, until they would be booked if they had ever been durable.
    json
        One JSON object a line.
    """
    now = datetime.now(UTC)
    since = now - timedelta(days=days)
    until = now + timedelta(days=1)
    rows = database.run(lambda engine: _compared(engine, since, wait_s))
    drift = _in_transaction(lambda connection: reconciliation.rollup_drift(connection, since=since, until=until))
    if json:
        for row in rows:
            print(msgspec.json.encode({**msgspec.structs.asdict(row), "missing": row.missing}).decode())
    else:
        _show_workers(rows)
    alerts = [
        f"worker {row.worker} counted {row.tokens:,} tokens and {row.missing:,} of them are not booked"
        for row in rows
        if row.missing > row.tokens * DRIFT_MAX
    ]
    if drift:
        alerts.append(f"{drift} rows of the hourly and daily sums are not what they should be: forebay usage rebuild")
    for alert in alerts:
        print(f"ALERT: {alert}", file=sys.stderr)
    if alerts:
        raise CommandError("bills and counters do not agree")


async def _compared(engine: AsyncEngine, since: datetime, wait_s: float) -> list[WorkerRow]:
    """The workers' counts now, and what of them is booked once it has had the time to be."""
    async with engine.connect() as connection:
        counted = await reconciliation.workers(connection, since=since)
        rows = counted
        until_s = time.monotonic() + wait_s
        while any(row.missing for row in rows):
            seen = await reconciliation.completeness(connection)
            rows = reconciliation.booked(counted, await reconciliation.workers(connection, since=since))
            if _settled(rows, seen):
                break
            if time.monotonic() >= until_s:
                raise CommandError("tokens are missing, and bills are not yet complete until they were counted")
            await asyncio.sleep(LOOK_AGAIN_S)
        return rows


def _settled(rows: list[WorkerRow], seen: Completeness | None) -> bool:
    """Whether everything that was counted would be booked by now, if it had been durable."""
    return seen is not None and all(seen.complete_until > row.observed_at + SETTLE for row in rows if row.missing)


def _show_workers(rows: list[WorkerRow]) -> None:
    shown_rows = table.of("worker", "last heard", "bills", "booked", "tokens", "booked", "missing")
    for row in rows:
        counts = (row.bills, row.booked, row.tokens, row.booked_tokens, row.missing)
        shown_rows.add_row(row.worker, f"{row.observed_at:%Y-%m-%d %H:%M:%S}", *(f"{count:,}" for count in counts))
    table.show(shown_rows)
