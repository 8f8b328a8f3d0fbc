"""/admin/v1/tenants."""

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.admin.operation import Call
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.route import get, patch, post
from gateway.api.admin.texts import Name
from gateway.db import catalogue
from gateway.db.catalogue import NO_LIMITS, Limits, Status, TenantRow


class NewTenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limits` are the tenant's own: they replace its plan's of the same metric."""

    name: Name
    plan: Name
    limits: Limits = NO_LIMITS
    ignore_unknown_fields: bool = False


class TenantChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay as they are."""

    plan: Name | UnsetType = UNSET
    status: Status | UnsetType = UNSET
    ignore_unknown_fields: bool | UnsetType = UNSET
    limits: Limits = NO_LIMITS


@post("/tenants")
async def create_tenant(call: Call, body: NewTenant) -> TenantRow:
    """Create a tenant."""
    return await catalogue.create_tenant(
        call.connection,
        body.name,
        plan=body.plan,
        limits=body.limits,
        ignore_unknown_fields=body.ignore_unknown_fields,
        by=call.author,
    )


@get("/tenants")
async def list_tenants(call: Call, query: PageQuery) -> Page[TenantRow]:
    """List tenants."""
    return page(await catalogue.list_tenants(call.connection, query.paging), query.limit)


@get("/tenants/{tenant}")
async def get_tenant(call: Call) -> TenantRow:
    """Look at a tenant."""
    return await catalogue.find_tenant(call.connection, call.path["tenant"])


@patch("/tenants/{tenant}")
async def update_tenant(call: Call, body: TenantChange) -> TenantRow:
    """Change a tenant's plan, status, limits or flags. Every gateway obeys within a second."""
    return await catalogue.update_tenant(
        call.connection,
        call.path["tenant"],
        plan=body.plan,
        status=body.status,
        ignore_unknown_fields=body.ignore_unknown_fields,
        limits=body.limits,
        by=call.author,
    )


ROUTES: Final = (create_tenant, list_tenants, get_tenant, update_tenant)
