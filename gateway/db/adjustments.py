"""Corrections of bills. A usage event never changes: a wrong bill is corrected by an additional line.

Invariant: the budgets of the event's month count an adjustment from the moment it is committed.
"""

import uuid
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import audit
from gateway.db.audit import Author
from gateway.db.catalogue.errors import NotFound, Refused
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import usage_adjustments, usage_events
from gateway.keys import redact
from shared.ids import uuid7

MICRO_MAX = 10**15  # the most that adjustments may make a request cost: sums of thousands of them fit a bigint
REASON_CHARS_MAX = 500

_SPEND = text(
    "SELECT spend(ARRAY[CAST(:tenant_id AS uuid)], ARRAY[CAST(:api_key_id AS uuid)], ARRAY[CAST(:model_id AS uuid)],"
    " ARRAY[CAST(:occurred_at AS timestamptz)], ARRAY[0::bigint], ARRAY[CAST(:micro AS bigint)])"
)
_EVENT = ("request_id", "attempt", "occurred_at", "tenant_id", "api_key_id", "model_id", "tier")


class AdjustmentRow(msgspec.Struct, frozen=True, kw_only=True):
    id: uuid.UUID
    request_id: uuid.UUID
    attempt: int
    occurred_at: datetime  # the event's
    micro: int  # added to what the event cost; negative gives back
    reason: str
    actor: str
    created_at: datetime


async def adjust(database: Database, request_id: uuid.UUID, *, micro: int, reason: str, by: Author) -> AdjustmentRow:
    """Add `micro` to the bill of a request's last attempt. Raises NotFound, and Refused for an amount that would refund
    more than the request has cost, or make it cost more than MICRO_MAX.
    """
    if micro == 0 or abs(micro) > MICRO_MAX or not 1 <= len(reason) <= REASON_CHARS_MAX:
        raise Refused(f"an adjustment has an amount other than 0 and a reason of 1 to {REASON_CHARS_MAX} characters")
    if redact(reason) != reason:
        raise Refused("a reason must not contain a key")
    async with transaction(database, "the adjustment") as connection:
        one_at_a_time = text("SELECT pg_advisory_xact_lock(hashtextextended(:request, 0))")
        await connection.execute(one_at_a_time, {"request": str(request_id)})
        event = await _last_event(connection, request_id)
        cost = await _cost(connection, request_id) + micro
        if micro < 0 and cost < 0:
            raise Refused(f"request {request_id} has cost less than that")
        if micro > 0 and cost > MICRO_MAX:
            raise Refused(f"no request costs more than {MICRO_MAX} micro-units")
        row = {**{name: getattr(event, name) for name in _EVENT}, "id": uuid7(), "micro": micro}
        added = insert(usage_adjustments).values(**row, reason=reason, actor=by.actor).returning(usage_adjustments)
        made = _row((await connection.execute(added)).one())
        await connection.execute(_SPEND, row)
        await audit.record(connection, by, "create", "adjustment", made.id, after=made)
        return made


async def list_adjustments(
    database: Database, *, request_id: uuid.UUID | None = None, paging: Paging = EVERYTHING
) -> list[AdjustmentRow]:
    """All, or those of a request, in the order in which they were made."""
    statement = paging.of(select(usage_adjustments), usage_adjustments.c.id)
    if request_id is not None:
        statement = statement.where(usage_adjustments.c.request_id == request_id)
    async with connected(database) as connection:
        return [_row(row) for row in (await connection.execute(statement)).all()]


def _row(row: Any) -> AdjustmentRow:
    return AdjustmentRow(**{name: getattr(row, name) for name in AdjustmentRow.__struct_fields__})


async def _last_event(connection: AsyncConnection, request_id: uuid.UUID) -> Any:
    events = select(usage_events).where(usage_events.c.request_id == request_id)
    event = (await connection.execute(events.order_by(usage_events.c.attempt.desc()).limit(1))).one_or_none()
    if event is None:
        raise NotFound(f"there is no bill of a request {request_id}")
    return event


async def _cost(connection: AsyncConnection, request_id: uuid.UUID) -> int:
    """The cost of all attempts, with all earlier adjustments."""
    billed = select(func.sum(usage_events.c.cost_micro)).where(usage_events.c.request_id == request_id)
    adjusted = select(func.sum(usage_adjustments.c.micro)).where(usage_adjustments.c.request_id == request_id)
    costs = [(await connection.execute(statement)).scalar_one() for statement in (billed, adjusted)]
    return sum(int(cost or 0) for cost in costs)
