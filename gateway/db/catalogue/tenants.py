"""Tenants: the customers who are billed."""

import uuid
from datetime import datetime
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Select, insert, select, update

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue import limits as own_limits
from gateway.db.catalogue.errors import NotFound
from gateway.db.catalogue.limits import NO_LIMITS, Limits
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.plans import find_plan
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import plans, quotas, tenants
from shared.ids import uuid7

Status = Literal["active", "suspended"]


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    id: uuid.UUID
    name: str
    status: Status
    plan: str
    tier: int
    limits: Limits  # the tenant's own, without its plan's
    ignore_unknown_fields: bool
    created_at: datetime


def _tenants() -> "Select[*tuple[Any, ...]]":
    own = own_limits.limits_of(quotas.c.tenant_id, tenants.c.id)
    statement = select(tenants, plans.c.name.label("plan"), plans.c.tier, own.label("limits"))
    return statement.join(plans, plans.c.id == tenants.c.plan_id)


def _row(row: Any) -> TenantRow:
    return TenantRow(
        id=row.id,
        name=row.name,
        status=row.status,
        plan=row.plan,
        tier=row.tier,
        limits=own_limits.read(row.limits),
        ignore_unknown_fields=row.ignore_unknown_fields,
        created_at=row.created_at,
    )


async def list_tenants(database: Database, paging: Paging = EVERYTHING) -> list[TenantRow]:
    async with connected(database) as connection:
        rows = (await connection.execute(paging.of(_tenants(), tenants.c.id))).all()
    return [_row(row) for row in rows]


async def find_tenant(database: Database, name: str) -> TenantRow:
    """Raises NotFound."""
    async with connected(database) as connection:
        row = (await connection.execute(_tenants().where(tenants.c.name == name))).one_or_none()
    if row is None:
        raise NotFound(f"there is no tenant called {name}")
    return _row(row)


async def create_tenant(
    database: Database,
    name: str,
    *,
    plan: str,
    limits: Limits = NO_LIMITS,
    ignore_unknown_fields: bool = False,
    by: Author = SYSTEM,
) -> TenantRow:
    """Raises NotFound (plan), AlreadyExists, Refused."""
    async with transaction(database, f"a tenant called {name}") as connection:
        plan_id = (await find_plan(connection, plan)).id
        tenant_id = uuid7()
        row = {"id": tenant_id, "name": name, "plan_id": plan_id, "ignore_unknown_fields": ignore_unknown_fields}
        await connection.execute(insert(tenants).values(row))
        await own_limits.write(connection, "tenant_id", tenant_id, limits)
        made = await find_tenant(connection, name)
        await audit.record(connection, by, "create", "tenant", tenant_id, after=made)
        return made


async def update_tenant(
    database: Database,
    name: str,
    *,
    plan: str | UnsetType = UNSET,
    status: Status | UnsetType = UNSET,
    ignore_unknown_fields: bool | UnsetType = UNSET,
    limits: Limits = NO_LIMITS,
    by: Author = SYSTEM,
) -> TenantRow:
    """Raises NotFound (tenant, plan), Refused."""
    async with transaction(database, f"the tenant {name}") as connection:
        await connection.execute(select(tenants.c.id).where(tenants.c.name == name).with_for_update())
        before = await find_tenant(connection, name)
        stated = {
            "plan_id": UNSET if plan is UNSET else (await find_plan(connection, plan)).id,
            "status": status,
            "ignore_unknown_fields": ignore_unknown_fields,
        }
        if values := {column: value for column, value in stated.items() if value is not UNSET}:
            await connection.execute(update(tenants).where(tenants.c.id == before.id).values(values))
        await own_limits.write(connection, "tenant_id", before.id, limits)
        after = await find_tenant(connection, name)
        await audit.record(connection, by, "update", "tenant", before.id, before=before, after=after)
        return after
