"""/admin/v1/models and /admin/v1/grants: which models there are, and who may use them."""

from typing import Final

import msgspec

from gateway.api.admin.operation import Call, Deleted
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.path import row_id
from gateway.api.admin.route import delete, get, post, put
from gateway.api.admin.texts import Alias, Name
from gateway.db import catalogue
from gateway.db.catalogue import Access, GrantRow, ModelRow


class ModelAccess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`open` to everybody, or only to those to whom it is `granted`."""

    model: Alias
    access: Access


class NewGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """To a plan's tenants or to one tenant."""

    model: Alias
    plan: Name | None = None
    tenant: Name | None = None


class GrantQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Alias | None = None


@get("/models")
async def list_models(call: Call, query: PageQuery) -> Page[ModelRow]:
    """List models that workers have ever announced."""
    return page(await catalogue.list_models(call.connection, query.paging), query.limit)


@put("/models/access")
async def set_access(call: Call, body: ModelAccess) -> ModelRow:
    """Open a model, or close it to all but those with a grant. Every gateway obeys within a second."""
    return await catalogue.set_access(call.connection, body.model, body.access, by=call.author)


@post("/grants")
async def create_grant(call: Call, body: NewGrant) -> GrantRow:
    """Grant a model to a plan or a tenant."""
    return await catalogue.create_grant(call.connection, body.model, plan=body.plan, tenant=body.tenant, by=call.author)


@get("/grants")
async def list_grants(call: Call, query: GrantQuery) -> Page[GrantRow]:
    """List grants, of all models or of one."""
    return page(await catalogue.list_grants(call.connection, model=query.model, paging=query.paging), query.limit)


@delete("/grants/{grant}")
async def delete_grant(call: Call) -> Deleted:
    """Take a grant away."""
    grant_id = row_id(call, "grant")
    await catalogue.delete_grant(call.connection, grant_id, by=call.author)
    return Deleted(id=str(grant_id))


ROUTES: Final = (list_models, set_access, create_grant, list_grants, delete_grant)
