"""Plans, which give their tenants a tier and limits."""

import uuid
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Select, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue import limits as own_limits
from gateway.db.catalogue.errors import NotFound, Refused
from gateway.db.catalogue.limits import NO_LIMITS, Limits
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.tiers import list_tiers
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import plans, quotas, tenants
from shared.ids import uuid7


class PlanRow(msgspec.Struct, frozen=True, kw_only=True):
    id: uuid.UUID
    name: str
    tier: int
    limits: Limits
    created_at: datetime


def _plans() -> "Select[*tuple[Any, ...]]":
    return select(plans, own_limits.limits_of(quotas.c.plan_id, plans.c.id).label("limits"))


def _row(row: Any) -> PlanRow:
    return PlanRow(
        id=row.id, name=row.name, tier=row.tier, limits=own_limits.read(row.limits), created_at=row.created_at
    )


async def list_plans(database: Database, paging: Paging = EVERYTHING) -> list[PlanRow]:
    async with connected(database) as connection:
        rows = (await connection.execute(paging.of(_plans(), plans.c.id))).all()
    return [_row(row) for row in rows]


async def find_plan(database: Database, name: str) -> PlanRow:
    """Raises NotFound."""
    async with connected(database) as connection:
        row = (await connection.execute(_plans().where(plans.c.name == name))).one_or_none()
    if row is None:
        raise NotFound(f"there is no plan called {name}")
    return _row(row)


async def plan_of_tier(database: Database, tier: int) -> str:
    """The oldest plan of that tier. Raises NotFound."""
    async with connected(database) as connection:
        statement = select(plans.c.name).where(plans.c.tier == tier).order_by(plans.c.created_at, plans.c.name).limit(1)
        name = (await connection.execute(statement)).scalar_one_or_none()
    if name is None:
        raise NotFound(f"there is no plan of tier {tier}")
    return name


async def create_plan(
    database: Database, name: str, *, tier: int, limits: Limits = NO_LIMITS, by: Author = SYSTEM
) -> PlanRow:
    """Raises NotFound (tier), AlreadyExists, Refused."""
    async with transaction(database, f"a plan called {name}") as connection:
        await _check_tier(connection, tier)
        plan_id = uuid7()
        await connection.execute(insert(plans).values(id=plan_id, name=name, tier=tier))
        await own_limits.write(connection, "plan_id", plan_id, limits)
        made = await find_plan(connection, name)
        await audit.record(connection, by, "create", "plan", plan_id, after=made)
        return made


async def update_plan(
    database: Database,
    name: str,
    *,
    tier: int | UnsetType = UNSET,
    limits: Limits = NO_LIMITS,
    by: Author = SYSTEM,
) -> PlanRow:
    """The change applies to every tenant of the plan at once. Raises NotFound (plan, tier), Refused."""
    async with transaction(database, f"the plan {name}") as connection:
        await connection.execute(select(plans.c.id).where(plans.c.name == name).with_for_update())
        before = await find_plan(connection, name)
        if tier is not UNSET:
            await _check_tier(connection, tier)
            await connection.execute(update(plans).where(plans.c.id == before.id).values(tier=tier))
        await own_limits.write(connection, "plan_id", before.id, limits)
        after = await find_plan(connection, name)
        await audit.record(connection, by, "update", "plan", before.id, before=before, after=after)
        return after


async def delete_plan(database: Database, name: str, *, by: Author = SYSTEM) -> None:
    """Its quotas and grants go with it. Raises NotFound, and Refused while it has tenants."""
    async with transaction(database, f"the plan {name}") as connection:
        before = await find_plan(connection, name)
        if (await connection.execute(select(tenants.c.id).where(tenants.c.plan_id == before.id).limit(1))).first():
            raise Refused(f"the plan {name} has tenants")
        await connection.execute(delete(plans).where(plans.c.id == before.id))
        await audit.record(connection, by, "delete", "plan", before.id, before=before)


async def _check_tier(connection: AsyncConnection, tier: int) -> None:
    if tier not in {row.id for row in await list_tiers(connection)}:
        raise NotFound(f"there is no tier {tier}")
