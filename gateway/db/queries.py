"""What the gateway asks the catalogue while it serves: a key with all that it may do, what changed, a model's row.

Statements in SQLAlchemy Core; each function is one transaction. Raises what `pools.AWAY` and SQLAlchemy's `DBAPIError`
name when Postgres cannot answer.
"""

import uuid
from datetime import datetime

import msgspec
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db.tables import api_keys, models, plans, quotas, tenants
from shared.ids import uuid7


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed` None is unlimited, 0 is none; `burst` None is one minute's worth."""

    metric: str
    allowed: int | None
    burst: int | None
    model_id: uuid.UUID | None = None  # None: every model
    mode: str = "enforce"


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key's row with its tenant's and plan's."""

    key_id: uuid.UUID
    public_id: str
    env: str
    digest: bytes
    scopes: frozenset[str]
    expires_at: datetime | None
    revoked_at: datetime | None
    tenant_id: uuid.UUID
    tenant: str
    tenant_status: str
    plan_id: uuid.UUID
    plan: str
    tier: int
    plan_quotas: tuple[Quota, ...]
    tenant_quotas: tuple[Quota, ...]
    key_quotas: tuple[Quota, ...]


_KEY = (
    select(
        api_keys.c.id,
        api_keys.c.public_id,
        api_keys.c.env,
        api_keys.c.secret_digest,
        api_keys.c.scopes,
        api_keys.c.expires_at,
        api_keys.c.revoked_at,
        tenants.c.id.label("tenant_id"),
        tenants.c.name.label("tenant"),
        tenants.c.status,
        plans.c.id.label("plan_id"),
        plans.c.name.label("plan"),
        plans.c.tier,
    )
    .join(tenants, tenants.c.id == api_keys.c.tenant_id)
    .join(plans, plans.c.id == tenants.c.plan_id)
)


async def find_key(engine: AsyncEngine, public_id: str) -> StoredKey | None:
    async with engine.connect() as connection:
        row = (await connection.execute(_KEY.where(api_keys.c.public_id == public_id))).one_or_none()
        if row is None:
            return None
        scoped = select(quotas).where(
            (quotas.c.plan_id == row.plan_id) | (quotas.c.tenant_id == row.tenant_id) | (quotas.c.api_key_id == row.id)
        )
        found = (await connection.execute(scoped)).all()

    def of(column: str) -> tuple[Quota, ...]:
        return tuple(
            Quota(
                metric=quota.metric,
                allowed=quota.allowed,
                burst=quota.burst,
                model_id=quota.model_id,
                mode=quota.mode,
            )
            for quota in found
            if getattr(quota, column) is not None
        )

    return StoredKey(
        key_id=row.id,
        public_id=row.public_id,
        env=row.env,
        digest=row.secret_digest,
        scopes=frozenset(row.scopes),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        tenant_status=row.status,
        plan_id=row.plan_id,
        plan=row.plan,
        tier=row.tier,
        plan_quotas=of("plan_id"),
        tenant_quotas=of("tenant_id"),
        key_quotas=of("api_key_id"),
    )


_CHANGES = text(
    "SELECT CAST(s.xmin AS text) AS xmin, c.id, c.tenant_id"
    " FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xmin) AS s"
    " LEFT JOIN config_changes c ON c.xid >= CAST(CAST(:since AS text) AS xid8)"
    " LIMIT :rows_max"
)


async def changes_since(engine: AsyncEngine, since: int, *, rows_max: int) -> tuple[int, dict[int, uuid.UUID | None]]:
    """The oldest transaction that is open now, and the changes (id -> tenant, None: all) whose transaction is not older
    than `since`, at most `rows_max`; both of one moment.
    """
    async with engine.connect() as connection:
        rows = (await connection.execute(_CHANGES, {"since": str(since), "rows_max": rows_max})).all()
    return int(rows[0].xmin), {row.id: row.tenant_id for row in rows if row.id is not None}


async def register_model(
    engine: AsyncEngine, name: str, *, context_length: int, vocab_size: int, card: str
) -> uuid.UUID:
    """The id of the model called `name`; its row is made when it is new and never changed here."""
    row = {
        "id": uuid7(),
        "alias": name,
        "context_length": context_length,
        "vocab_size": vocab_size,
        "card": card,
    }
    async with engine.begin() as connection:
        known = select(models.c.id).where(models.c.alias == name)
        found = (await connection.execute(known)).scalar_one_or_none()
        if found is None:
            await connection.execute(insert(models).values(row).on_conflict_do_nothing(index_elements=["alias"]))
            found = (await connection.execute(known)).scalar_one()
        return found
