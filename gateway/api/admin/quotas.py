"""/admin/v1/quotas: one by one, with what `limits` elsewhere leave out: one model's, the burst and the mode."""

import uuid
from typing import Annotated, Final

import msgspec

from gateway.admission.bucket import LIMIT_MAX
from gateway.api.admin.operation import Call, Deleted
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.path import row_id
from gateway.api.admin.route import delete, get, put
from gateway.api.admin.texts import Alias, Name, PublicId, form
from gateway.db import catalogue
from gateway.db.catalogue import Allowed, Mode, QuotaRow, Scope
from gateway.db.tables import QUOTA_METRICS

Metric = Annotated[
    str, msgspec.Meta(pattern=form(f"({'|'.join(QUOTA_METRICS)})"), extra_json_schema={"enum": list(QUOTA_METRICS)})
]
Burst = Annotated[int, msgspec.Meta(ge=1, le=LIMIT_MAX)]


class NewQuota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one plan, one tenant or one key, for one model or (null) for all together. `allowed` null is unlimited, 0
    none; `burst` null is one minute's worth. In the mode `shadow` it is counted when it would have refused, and never
    refuses.
    """

    plan: Name | None = None
    tenant: Name | None = None
    key: PublicId | None = None
    model: Alias | None = None
    metric: Metric
    allowed: Allowed | None
    burst: Burst | None = None
    mode: Mode = "enforce"


class QuotaQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    plan: Name | None = None
    tenant: Name | None = None
    key: PublicId | None = None
    model: Alias | None = None


@put("/quotas")
async def set_quota(call: Call, body: NewQuota) -> QuotaRow:
    """Set a quota, new or in place of the one of that scope, model and metric."""
    scope = Scope(plan=body.plan, tenant=body.tenant, key=body.key, model=body.model)
    return await catalogue.set_quota(
        call.connection,
        scope,
        body.metric,
        allowed=body.allowed,
        burst=body.burst,
        mode=body.mode,
        by=call.author,
    )


@get("/quotas")
async def list_quotas(call: Call, query: QuotaQuery) -> Page[QuotaRow]:
    """List quotas, all or those of a plan, a tenant, a key or a model."""
    scope = Scope(plan=query.plan, tenant=query.tenant, key=query.key, model=query.model)
    return page(await catalogue.list_quotas(call.connection, scope, query.paging), query.limit)


@delete("/quotas/{quota}")
async def delete_quota(call: Call) -> Deleted:
    """Delete a quota; a tenant then has its plan's."""
    quota_id: uuid.UUID = row_id(call, "quota")
    await catalogue.delete_quota(call.connection, quota_id, by=call.author)
    return Deleted(id=str(quota_id))


ROUTES: Final = (set_quota, list_quotas, delete_quota)
