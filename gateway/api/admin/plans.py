"""/admin/v1/plans and /admin/v1/tiers."""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET, UnsetType

from gateway.api.admin.operation import Call, Deleted
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.route import delete, get, patch, post
from gateway.api.admin.texts import Name
from gateway.db import catalogue
from gateway.db.catalogue import NO_LIMITS, Limits, PlanRow, TierRow

Tier = Annotated[int, msgspec.Meta(ge=0, le=9, description="0 is the most urgent.")]


class NewPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`limits` hold for each of its tenants that has none of its own of that metric."""

    name: Name
    tier: Tier
    limits: Limits = NO_LIMITS


class PlanChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out stay as they are."""

    tier: Tier | UnsetType = UNSET
    limits: Limits = NO_LIMITS


class TierList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[TierRow]


@post("/plans")
async def create_plan(call: Call, body: NewPlan) -> PlanRow:
    """Create a plan."""
    return await catalogue.create_plan(call.connection, body.name, tier=body.tier, limits=body.limits, by=call.author)


@get("/plans")
async def list_plans(call: Call, query: PageQuery) -> Page[PlanRow]:
    """List plans."""
    return page(await catalogue.list_plans(call.connection, query.paging), query.limit)


@get("/plans/{plan}")
async def get_plan(call: Call) -> PlanRow:
    """Look at a plan."""
    return await catalogue.find_plan(call.connection, call.path["plan"])


@patch("/plans/{plan}")
async def update_plan(call: Call, body: PlanChange) -> PlanRow:
    """Change a plan's tier or limits, for all of its tenants. Every gateway obeys within a second."""
    return await catalogue.update_plan(
        call.connection, call.path["plan"], tier=body.tier, limits=body.limits, by=call.author
    )


@delete("/plans/{plan}")
async def delete_plan(call: Call) -> Deleted:
    """Delete a plan that has no tenants."""
    await catalogue.delete_plan(call.connection, call.path["plan"], by=call.author)
    return Deleted(id=call.path["plan"])


@get("/tiers")
async def list_tiers(call: Call) -> TierList:
    """List tiers, the most urgent first."""
    return TierList(data=await catalogue.list_tiers(call.connection))


ROUTES: Final = (create_plan, list_plans, get_plan, update_plan, delete_plan, list_tiers)
