"""Models as rows: open to everybody, or only to those with a grant. Workers' cards create the rows."""

import uuid
from datetime import datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Select, delete, insert, select, update

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue.errors import NotFound, Refused
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.plans import find_plan
from gateway.db.catalogue.tenants import find_tenant
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import model_grants, models, plans, tenants
from shared.ids import uuid7

Access = Literal["open", "granted"]


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    id: uuid.UUID
    name: str
    context_length: int
    vocab_size: int
    access: Access  # granted: only for those with a grant
    created_at: datetime


class GrantRow(msgspec.Struct, frozen=True, kw_only=True):
    """To a plan's tenants or to one tenant."""

    id: uuid.UUID
    model: str
    plan: str | None
    tenant: str | None
    created_at: datetime


_MODELS = select(
    models.c.id,
    models.c.alias.label("name"),
    models.c.context_length,
    models.c.vocab_size,
    models.c.access,
    models.c.created_at,
)


def _grants() -> "Select[*tuple[Any, ...]]":
    return (
        select(
            model_grants.c.id,
            models.c.alias.label("model"),
            plans.c.name.label("plan"),
            tenants.c.name.label("tenant"),
            model_grants.c.created_at,
        )
        .join(models, models.c.id == model_grants.c.model_id)
        .outerjoin(plans, plans.c.id == model_grants.c.plan_id)
        .outerjoin(tenants, tenants.c.id == model_grants.c.tenant_id)
    )


async def list_models(database: Database, paging: Paging = EVERYTHING) -> list[ModelRow]:
    async with connected(database) as connection:
        rows = (await connection.execute(paging.of(_MODELS, models.c.id))).mappings()
    return [ModelRow(**row) for row in rows]


async def find_model(database: Database, name: str) -> ModelRow:
    """Raises NotFound."""
    async with connected(database) as connection:
        row = (await connection.execute(_MODELS.where(models.c.alias == name))).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no model called {name}")
    return ModelRow(**row)


async def set_access(database: Database, name: str, access: Access, *, by: Author = SYSTEM) -> ModelRow:
    """Raises NotFound."""
    async with transaction(database, f"the model {name}") as connection:
        before = await find_model(connection, name)
        await connection.execute(update(models).where(models.c.id == before.id).values(access=access))
        after = await find_model(connection, name)
        await audit.record(connection, by, "update", "model", before.id, before=before, after=after)
        return after


async def list_grants(database: Database, *, model: str | None = None, paging: Paging = EVERYTHING) -> list[GrantRow]:
    """All, or those of a model. Raises NotFound (model)."""
    statement = _grants()
    async with connected(database) as connection:
        if model is not None:
            statement = statement.where(models.c.id == (await find_model(connection, model)).id)
        rows = (await connection.execute(paging.of(statement, model_grants.c.id))).mappings()
    return [GrantRow(**row) for row in rows]


async def create_grant(
    database: Database, model: str, *, plan: str | None = None, tenant: str | None = None, by: Author = SYSTEM
) -> GrantRow:
    """To a plan or to a tenant. Raises NotFound (model, plan, tenant), AlreadyExists, Refused."""
    if (plan is None) == (tenant is None):
        raise Refused("a grant is to a plan or to a tenant")
    async with transaction(database, f"this grant of {model}") as connection:
        grant_id = uuid7()
        row = {
            "id": grant_id,
            "model_id": (await find_model(connection, model)).id,
            "plan_id": None if plan is None else (await find_plan(connection, plan)).id,
            "tenant_id": None if tenant is None else (await find_tenant(connection, tenant)).id,
        }
        await connection.execute(insert(model_grants).values(row))
        made = await _find_grant(connection, grant_id)
        await audit.record(connection, by, "create", "grant", grant_id, after=made)
        return made


async def delete_grant(database: Database, grant_id: uuid.UUID, *, by: Author = SYSTEM) -> None:
    """Raises NotFound."""
    async with transaction(database, f"the grant {grant_id}") as connection:
        before = await _find_grant(connection, grant_id)
        await connection.execute(delete(model_grants).where(model_grants.c.id == grant_id))
        await audit.record(connection, by, "delete", "grant", grant_id, before=before)


async def _find_grant(database: Database, grant_id: uuid.UUID) -> GrantRow:
    async with connected(database) as connection:
        row = (await connection.execute(_grants().where(model_grants.c.id == grant_id))).mappings().one_or_none()
    if row is None:
        raise NotFound(f"there is no grant {grant_id}")
    return GrantRow(**row)
