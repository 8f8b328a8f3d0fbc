"""/admin/v1/usage: sums of bills, until when they are complete, and corrections."""

import uuid
from datetime import datetime
from typing import Annotated, Final

import msgspec

from gateway.api.admin.operation import Call
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.route import get, post
from gateway.api.admin.texts import Name
from gateway.db import adjustments, reconciliation, usage
from gateway.db.adjustments import MICRO_MAX, REASON_CHARS_MAX, AdjustmentRow
from gateway.db.reconciliation import Completeness
from gateway.db.usage import UsageRow

ROWS_MAX: Final = 1_000

Moment = Annotated[datetime, msgspec.Meta(tz=True)]
Micro = Annotated[int, msgspec.Meta(ge=-MICRO_MAX, le=MICRO_MAX, description="Added to the bill; negative gives back.")]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=REASON_CHARS_MAX)]


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests made at or after `since` and before `until`."""

    tenant: Name | None = None
    since: Moment | None = None
    until: Moment | None = None


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """`has_more`: there are too many rows for one answer; ask for one tenant. `completeness` null: no ledger has
    reported yet.
    """

    data: list[UsageRow]
    has_more: bool
    completeness: Completeness | None


class NewAdjustment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request_id: uuid.UUID
    micro: Micro
    reason: Reason


class AdjustmentQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    request_id: uuid.UUID | None = None


@get("/usage")
async def get_usage(call: Call, query: UsageQuery) -> UsageReport:
    """Requests, tokens and cost by tenant and model, and until when bills are complete."""
    # Before the sums are read, so that they include at least this much.
    completeness = await reconciliation.completeness(call.connection)
    rows = await usage.totals(
        call.connection, tenant=query.tenant, since=query.since, until=query.until, rows_max=ROWS_MAX + 1
    )
    return UsageReport(data=rows[:ROWS_MAX], has_more=len(rows) > ROWS_MAX, completeness=completeness)


@post("/usage/adjustments")
async def create_adjustment(call: Call, body: NewAdjustment) -> AdjustmentRow:
    """Correct the bill of a request by a line of its own, which gives back at most what it has cost."""
    return await adjustments.adjust(
        call.connection, body.request_id, micro=body.micro, reason=body.reason, by=call.author
    )


@get("/usage/adjustments")
async def list_adjustments(call: Call, query: AdjustmentQuery) -> Page[AdjustmentRow]:
    """List corrections, all or those of a request."""
    rows = await adjustments.list_adjustments(call.connection, request_id=query.request_id, paging=query.paging)
    return page(rows, query.limit)


ROUTES: Final = (get_usage, create_adjustment, list_adjustments)
