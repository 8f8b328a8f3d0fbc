"""Making and listing tenants, plans' tenants, keys and quotas: what an operator does.

Each function is one transaction; the triggers of the schema tell the gateways. Knows nothing of who asked.

CatalogueError
├── NotFound        no such tenant, plan, tier or key
├── AlreadyExists   the name is taken
└── Refused         a constraint of the schema says no
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import datetime

import msgspec
from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.auth.keys import KeyRecord
from gateway.db.tables import api_keys, plans, quotas, tenants
from shared.ids import uuid7

UNIQUE_VIOLATION = "23505"


class CatalogueError(Exception):
    """The message is one sentence for the operator."""


class NotFound(CatalogueError):
    pass


class AlreadyExists(CatalogueError):
    pass


class Refused(CatalogueError):
    pass


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas to write: None leaves a metric without one, 0 allows nothing."""

    rpm: int | None = None
    tpm: int | None = None
    max_context: int | None = None


NO_LIMITS = Limits()


class TenantRow(msgspec.Struct, frozen=True, kw_only=True):
    id: uuid.UUID
    name: str
    status: str
    plan: str
    tier: int
    limits: Limits  # the tenant's own, without its plan's
    created_at: datetime


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    id: uuid.UUID
    tenant: str
    public_id: str
    env: str
    last4: str
    name: str
    scopes: tuple[str, ...]
    expires_at: datetime | None
    revoked_at: datetime | None
    created_at: datetime


async def plan_of_tier(engine: AsyncEngine, tier: int) -> str:
    """The oldest plan of that tier. Raises NotFound."""
    async with engine.connect() as connection:
        asked = select(plans.c.name).where(plans.c.tier == tier).order_by(plans.c.created_at, plans.c.name).limit(1)
        name = (await connection.execute(asked)).scalar_one_or_none()
    if name is None:
        raise NotFound(f"there is no plan of tier {tier}")
    return name


async def create_tenant(engine: AsyncEngine, name: str, *, plan: str, limits: Limits) -> uuid.UUID:
    """Raises NotFound (plan), AlreadyExists, Refused."""
    asked = select(plans.c.id).where(plans.c.name == plan)
    async with _transaction(engine, f"a tenant called {name}") as connection:
        plan_id = (await connection.execute(asked)).scalar_one_or_none()
        if plan_id is None:
            raise NotFound(f"there is no plan called {plan}")
        tenant_id = uuid7()
        await connection.execute(insert(tenants).values(id=tenant_id, name=name, plan_id=plan_id))
        await _write_limits(connection, "tenant_id", tenant_id, limits)
        return tenant_id


async def list_tenants(engine: AsyncEngine) -> list[TenantRow]:
    own = func.jsonb_object_agg(quotas.c.metric, quotas.c.allowed).filter(quotas.c.id.is_not(None))
    asked = (
        select(tenants, plans.c.name.label("plan"), plans.c.tier, own.label("limits"))
        .join(plans, plans.c.id == tenants.c.plan_id)
        .outerjoin(quotas, quotas.c.tenant_id == tenants.c.id)
        .group_by(tenants.c.id, plans.c.id)
        .order_by(tenants.c.name)
    )
    async with engine.connect() as connection:
        rows = (await connection.execute(asked)).all()
    return [
        TenantRow(
            id=row.id,
            name=row.name,
            status=row.status,
            plan=row.plan,
            tier=row.tier,
            limits=msgspec.convert(row.limits or {}, Limits),
            created_at=row.created_at,
        )
        for row in rows
    ]


async def create_key(
    engine: AsyncEngine,
    tenant: str,
    record: KeyRecord,
    *,
    scopes: frozenset[str],
    name: str = "",
    limits: Limits = NO_LIMITS,
) -> uuid.UUID:
    """Store a key that `keys.generate` made. Raises NotFound (tenant), AlreadyExists (public id), Refused."""
    async with _transaction(engine, f"a key {record.public_id}") as connection:
        tenant_id = (
            await connection.execute(select(tenants.c.id).where(tenants.c.name == tenant))
        ).scalar_one_or_none()
        if tenant_id is None:
            raise NotFound(f"there is no tenant called {tenant}")
        key_id = uuid7()
        await connection.execute(
            insert(api_keys).values(
                id=key_id,
                public_id=record.public_id,
                tenant_id=tenant_id,
                env=record.env,
                secret_digest=record.digest,
                last4=record.last4,
                name=name,
                scopes=sorted(scopes),
            )
        )
        await _write_limits(connection, "api_key_id", key_id, limits)
        return key_id


async def list_keys(engine: AsyncEngine, tenant: str | None = None) -> list[KeyRow]:
    """All keys, or a tenant's, oldest first. Nothing of a secret but its last four characters is stored to be shown."""
    asked = (
        select(api_keys, tenants.c.name.label("tenant"))
        .join(tenants, tenants.c.id == api_keys.c.tenant_id)
        .order_by(tenants.c.name, api_keys.c.created_at)
    )
    if tenant is not None:
        asked = asked.where(tenants.c.name == tenant)
    async with engine.connect() as connection:
        rows = (await connection.execute(asked)).all()
    return [
        KeyRow(
            id=row.id,
            tenant=row.tenant,
            public_id=row.public_id,
            env=row.env,
            last4=row.last4,
            name=row.name,
            scopes=tuple(row.scopes),
            expires_at=row.expires_at,
            revoked_at=row.revoked_at,
            created_at=row.created_at,
        )
        for row in rows
    ]


async def revoke_key(engine: AsyncEngine, public_id: str) -> None:
    """Idempotent; the first revocation's time stays. Raises NotFound."""
    async with engine.begin() as connection:
        revoked: CursorResult[tuple[object, ...]] = await connection.execute(
            update(api_keys)
            .where(api_keys.c.public_id == public_id)
            .values(revoked_at=func.coalesce(api_keys.c.revoked_at, func.now()))
        )
        if revoked.rowcount == 0:
            raise NotFound(f"there is no key {public_id}")


async def _write_limits(connection: AsyncConnection, scope: str, scope_id: uuid.UUID, limits: Limits) -> None:
    rows = [
        {"id": uuid7(), scope: scope_id, "metric": metric, "allowed": allowed}
        for metric, allowed in msgspec.structs.asdict(limits).items()
        if allowed is not None
    ]
    if rows:
        await connection.execute(insert(quotas), rows)


@asynccontextmanager
async def _transaction(engine: AsyncEngine, what: str) -> AsyncGenerator[AsyncConnection]:
    try:
        async with engine.begin() as connection:
            yield connection
    except IntegrityError as error:
        if getattr(error.orig, "sqlstate", None) == UNIQUE_VIOLATION:
            raise AlreadyExists(f"{what} exists already") from error
        raise Refused(f"{what} is refused: {_constraint(error)}") from error


def _constraint(error: IntegrityError) -> str:
    """The constraint's name, which is written to be read: quotas_allowed_range, tenants_name_form."""
    cause = error.orig.__cause__ if error.orig is not None else None
    return str(getattr(cause, "constraint_name", None) or "a constraint of the schema")
