"""/admin/v1/audit: who changed what, the newest first."""

from typing import Annotated, Final

import msgspec

from gateway.api.admin.operation import Call
from gateway.api.admin.pages import Page, PageLimit, page
from gateway.api.admin.route import get
from gateway.db import audit
from gateway.db.audit import AuditRow

Text = Annotated[str, msgspec.Meta(max_length=200)]


class AuditQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: PageLimit = 20
    after: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1, description="The last id of the page before.")] | None = None
    object_type: Text | None = None
    object_id: Text | None = None
    actor: Text | None = None


@get("/audit")
async def list_audit(call: Call, query: AuditQuery) -> Page[AuditRow]:
    """List changes, the newest first."""
    rows = await audit.rows(
        call.connection,
        object_type=query.object_type,
        object_id=query.object_id,
        actor=query.actor,
        before=query.after,
        rows_max=query.limit + 1,
    )
    return page(rows, query.limit)


ROUTES: Final = (list_audit,)
