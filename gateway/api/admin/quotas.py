"""/admin/v1/quotas: one by one, with what the `limits` of other objects leave out."""

import uuid
from typing import Annotated, Final

import msgspec

from gateway.admission.bucket import LIMIT_MAX
from gateway.api.admin.operation import Call, Deleted
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.path import row_id
from gateway.api.admin.route import delete, get, put
from gateway.api.admin.texts import Name, PublicId
from gateway.db import catalogue
from gateway.db.catalogue import Allowed, QuotaRow, Scope
from gateway.db.tables import QUOTA_METRICS

Metric = Annotated[
    str, msgspec.Meta(pattern=f"^({'|'.join(QUOTA_METRICS)})$", extra_json_schema={"enum": list(QUOTA_METRICS)})
]
Burst = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)]


class NewQuota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one plan, one tenant or one key. `allowed` null is unlimited, 0 none; `burst` null is one minute's worth."""

    plan: Name | None = None
    tenant: Name | None = None
    key: PublicId | None = None
    metric: Metric
    allowed: Allowed | None
    burst: Burst | None = None


class QuotaQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    plan: Name | None = None
    tenant: Name | None = None
    key: PublicId | None = None


@put("/quotas")
async def set_quota(call: Call, body: NewQuota) -> QuotaRow:
    """Set a quota, new or in place of the one of that scope and metric."""
    scope = Scope(plan=body.plan, tenant=body.tenant, key=body.key)
    return await catalogue.set_quota(
        call.connection, scope, body.metric, allowed=body.allowed, burst=body.burst, by=call.author
    )


@get("/quotas")
async def list_quotas(call: Call, query: QuotaQuery) -> Page[QuotaRow]:
    """List quotas, all or those of a plan, a tenant or a key."""
    scope = Scope(plan=query.plan, tenant=query.tenant, key=query.key)
    return page(await catalogue.list_quotas(call.connection, scope, query.paging), query.limit)


@delete("/quotas/{quota}")
async def delete_quota(call: Call) -> Deleted:
    """Delete a quota; a tenant then has its plan's."""
    quota_id: uuid.UUID = row_id(call, "quota")
    await catalogue.delete_quota(call.connection, quota_id, by=call.author)
    return Deleted(id=str(quota_id))


ROUTES: Final = (set_quota, list_quotas, delete_quota)
