"""Single quotas of a plan, a tenant or a key, with the parts that `Limits` leaves out: one model's, burst and mode."""

import uuid
from datetime import datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Select, and_, delete, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue.errors import NotFound, Refused
from gateway.db.catalogue.keys import find_key
from gateway.db.catalogue.limits import UNIQUE
from gateway.db.catalogue.models import find_model
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.plans import find_plan
from gateway.db.catalogue.tenants import find_tenant
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import api_keys, models, plans, quotas, tenants
from shared.ids import uuid7

BURSTING = ("rpm", "tpm")
Mode = Literal["enforce", "shadow"]  # shadow: a request that it would refuse is counted, and admitted


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of a plan's name, a tenant's name and a key's public id; `model` None is every model together."""

    plan: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None


class QuotaRow(msgspec.Struct, frozen=True, kw_only=True):
    """`model` null is every model together; `allowed` null is unlimited, 0 none; `burst` null is one minute's worth."""

    id: uuid.UUID
    plan: str | None
    tenant: str | None
    key: str | None
    model: str | None
    metric: str
    allowed: int | None
    burst: int | None
    mode: Mode
    created_at: datetime


def _quotas() -> "Select[*tuple[Any, ...]]":
    return (
        select(
            quotas.c.id,
            plans.c.name.label("plan"),
            tenants.c.name.label("tenant"),
            api_keys.c.public_id.label("key"),
            models.c.alias.label("model"),
            quotas.c.metric,
            quotas.c.allowed,
            quotas.c.burst,
            quotas.c.mode,
            quotas.c.created_at,
        )
        .outerjoin(plans, plans.c.id == quotas.c.plan_id)
        .outerjoin(tenants, tenants.c.id == quotas.c.tenant_id)
        .outerjoin(api_keys, api_keys.c.id == quotas.c.api_key_id)
        .outerjoin(models, models.c.id == quotas.c.model_id)
    )


async def list_quotas(database: Database, scope: Scope | None = None, paging: Paging = EVERYTHING) -> list[QuotaRow]:
    """All, or those of everything that `scope` names. Raises NotFound (plan, tenant, key, model)."""
    statement = _quotas()
    wanted = scope or Scope()
    async with connected(database) as connection:
        for column, name, find in (
            (quotas.c.plan_id, wanted.plan, find_plan),
            (quotas.c.tenant_id, wanted.tenant, find_tenant),
            (quotas.c.api_key_id, wanted.key, find_key),
            (quotas.c.model_id, wanted.model, find_model),
        ):
            if name is not None:
                statement = statement.where(column == (await find(connection, name)).id)
        rows = (await connection.execute(paging.of(statement, quotas.c.id))).mappings()
    return [QuotaRow(**row) for row in rows]


async def set_quota(
    database: Database,
    scope: Scope,
    metric: str,
    *,
    allowed: int | None,
    burst: int | None = None,
    mode: Mode = "enforce",
    by: Author = SYSTEM,
) -> QuotaRow:
    """Make the quota of that scope and metric, or replace it. Raises NotFound (plan, tenant, key,
    model), Refused.
    """
    if burst is not None and metric not in BURSTING:
        raise Refused(f"{metric} has no burst: {' and '.join(BURSTING)} have")
    async with transaction(database, f"this quota of {metric}") as connection:
        column, owner = await _owner(connection, scope)
        model_id = None if scope.model is None else (await find_model(connection, scope.model)).id
        place = {column: owner, "model_id": model_id, "metric": metric}
        here = and_(*(quotas.c[name].is_not_distinct_from(value) for name, value in place.items()))
        before = await _find(connection, here)
        changed = {"allowed": allowed, "burst": burst, "mode": mode}
        new = insert(quotas).values({"id": uuid7(), **place, **changed})
        await connection.execute(new.on_conflict_do_update(constraint=UNIQUE, set_=changed))
        after = await _find(connection, here)
        assert after is not None
        action = "create" if before is None else "update"
        await audit.record(connection, by, action, "quota", after.id, before=before, after=after)
        return after


async def delete_quota(database: Database, quota_id: uuid.UUID, *, by: Author = SYSTEM) -> None:
    """A tenant then has its plan's quota of that metric, if there is one. Raises NotFound."""
    async with transaction(database, f"the quota {quota_id}") as connection:
        before = await _find(connection, quotas.c.id == quota_id)
        if before is None:
            raise NotFound(f"there is no quota {quota_id}")
        await connection.execute(delete(quotas).where(quotas.c.id == quota_id))
        await audit.record(connection, by, "delete", "quota", quota_id, before=before)


async def _owner(connection: AsyncConnection, scope: Scope) -> tuple[str, uuid.UUID]:
    match scope:
        case Scope(plan=str(plan), tenant=None, key=None):
            return "plan_id", (await find_plan(connection, plan)).id
        case Scope(plan=None, tenant=str(tenant), key=None):
            return "tenant_id", (await find_tenant(connection, tenant)).id
        case Scope(plan=None, tenant=None, key=str(key)):
            return "api_key_id", (await find_key(connection, key)).id
        case _:
            raise Refused("a quota is of one plan, one tenant or one key")


async def _find(connection: AsyncConnection, condition: Any) -> QuotaRow | None:
    row = (await connection.execute(_quotas().where(condition))).mappings().one_or_none()
    return None if row is None else QuotaRow(**row)
