"""The gateway's queries while it serves: a key with its permissions and limits, what has changed, a model's row.

Statements in SQLAlchemy Core; each function is one transaction. Raises what `pools.AWAY` and SQLAlchemy's `DBAPIError`
name when Postgres cannot answer.
"""

import uuid
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

import msgspec
from sqlalchemy import Text, cast, func, select, text
from sqlalchemy.dialects.postgresql import ARRAY, insert
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import address
from gateway.db.tables import api_keys, model_grants, models, plans, quotas, tenants, tiers
from shared.ids import uuid7


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """`allowed` None is unlimited, 0 is none; `burst` None is one minute's worth."""

    metric: str
    allowed: int | None
    burst: int | None
    model_id: uuid.UUID | None = None  # None: every model
    mode: str = "enforce"


class TierBounds(msgspec.Struct, frozen=True, kw_only=True):
    """How long requests of a tier may wait, and how many may. None is unbounded."""

    wait_ms_max: int = 60_000  # from arrival until a worker has started it
    first_token_ms_max: int | None = None  # that load may add before the first token
    queued_requests_max: int | None = None
    queued_tokens_max: int | None = None  # of prompts


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key's row with its tenant's, plan's and tier's. `models` and `networks`: None allows all, an empty one
    none.
    """

    key_id: uuid.UUID
    public_id: str
    env: str
    digest: bytes
    scopes: frozenset[str]
    expires_at: datetime | None
    revoked_at: datetime | None
    former_digest: bytes | None = None  # of the secret before the last rotation
    former_until: datetime | None = None
    networks: tuple[address.Network, ...] | None = None
    models: frozenset[uuid.UUID] | None = None  # that it may use, by its own list, the models' access and the grants
    tenant_id: uuid.UUID
    tenant: str
    tenant_status: str
    ignore_unknown_fields: bool = False
    plan_id: uuid.UUID
    plan: str
    tier: int
    tier_bounds: TierBounds
    plan_quotas: tuple[Quota, ...]
    tenant_quotas: tuple[Quota, ...]
    key_quotas: tuple[Quota, ...]


_GRANTED = (
    select(model_grants.c.id)
    .where(
        model_grants.c.model_id == models.c.id,
        (model_grants.c.tenant_id == tenants.c.id) | (model_grants.c.plan_id == plans.c.id),
    )
    .correlate_except(model_grants)
    .exists()
)
_USABLE = (
    select(func.array_agg(models.c.id))
    .where((models.c.access == "open") | _GRANTED)
    .correlate_except(models, model_grants)
    .scalar_subquery()
)
_KEY = (
    select(
        api_keys.c.id,
        api_keys.c.public_id,
        api_keys.c.env,
        api_keys.c.secret_digest,
        api_keys.c.scopes,
        api_keys.c.expires_at,
        api_keys.c.revoked_at,
        api_keys.c.former_digest,
        api_keys.c.former_until,
        api_keys.c.models,
        cast(api_keys.c.networks, ARRAY(Text)).label("networks"),
        _USABLE.label("usable_models"),
        select(func.count()).select_from(models).scalar_subquery().label("models_count"),
        tenants.c.id.label("tenant_id"),
        tenants.c.name.label("tenant"),
        tenants.c.status,
        tenants.c.ignore_unknown_fields,
        plans.c.id.label("plan_id"),
        plans.c.name.label("plan"),
        plans.c.tier,
        *(tiers.c[name] for name in TierBounds.__struct_fields__),
    )
    .join(tenants, tenants.c.id == api_keys.c.tenant_id)
    .join(plans, plans.c.id == tenants.c.plan_id)
    .join(tiers, tiers.c.id == plans.c.tier)
)


async def find_key(engine: AsyncEngine, public_id: str) -> StoredKey | None:
    async with engine.connect() as connection:
        row = (await connection.execute(_KEY.where(api_keys.c.public_id == public_id))).one_or_none()
        if row is None:
            return None
        scoped = select(quotas).where(
            (quotas.c.plan_id == row.plan_id) | (quotas.c.tenant_id == row.tenant_id) | (quotas.c.api_key_id == row.id)
        )
        rows = (await connection.execute(scoped)).all()

    def of(column: str) -> tuple[Quota, ...]:
        return tuple(
            Quota(
                metric=quota.metric,
                allowed=quota.allowed,
                burst=quota.burst,
                model_id=quota.model_id,
                mode=quota.mode,
            )
            for quota in rows
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
        former_digest=row.former_digest,
        former_until=row.former_until,
        networks=None if row.networks is None else tuple(address.network(text) for text in row.networks),
        models=_usable(row),
        tenant_id=row.tenant_id,
        tenant=row.tenant,
        tenant_status=row.status,
        ignore_unknown_fields=row.ignore_unknown_fields,
        plan_id=row.plan_id,
        plan=row.plan,
        tier=row.tier,
        tier_bounds=msgspec.convert(row, TierBounds, from_attributes=True),
        plan_quotas=of("plan_id"),
        tenant_quotas=of("tenant_id"),
        key_quotas=of("api_key_id"),
    )


def _usable(row: Any) -> frozenset[uuid.UUID] | None:
    """The models that the key may use: open or granted to its tenant and, if the key lists models, among those. None if
    that is all models.
    """
    usable = frozenset[uuid.UUID](row.usable_models or ())
    if row.models is not None:
        return usable & frozenset(row.models)
    return None if len(usable) == row.models_count else usable


_CHANGES = text(
    "SELECT CAST(s.xmin AS text) AS xmin, c.id, c.tenant_id"
    " FROM (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xmin) AS s"
    " LEFT JOIN config_changes c ON c.xid >= CAST(CAST(:since AS text) AS xid8)"
    " LIMIT :rows_max"
)


async def changes_since(engine: AsyncEngine, since: int, *, rows_max: int) -> tuple[int, dict[int, uuid.UUID | None]]:
    """The oldest transaction that is open now, and the changes (id -> tenant, None: all) whose transaction is not older
    than `since`, at most `rows_max`. Both are of one snapshot.
    """
    async with engine.connect() as connection:
        rows = (await connection.execute(_CHANGES, {"since": str(since), "rows_max": rows_max})).all()
    return int(rows[0].xmin), {row.id: row.tenant_id for row in rows if row.id is not None}


_USES = text(
    "INSERT INTO key_uses (api_key_id, last_used_on)"
    " SELECT k.id, u.day FROM unnest(CAST(:ids AS uuid[]), CAST(:days AS date[])) AS u (id, day)"
    " JOIN api_keys k ON k.id = u.id ORDER BY k.id"  # in one order, so that two gateways never deadlock
    " ON CONFLICT (api_key_id) DO UPDATE SET last_used_on = excluded.last_used_on"
    " WHERE key_uses.last_used_on < excluded.last_used_on"
)


async def note_uses(engine: AsyncEngine, days: Mapping[uuid.UUID, date]) -> None:
    """Store the last day on which each key was used. Keys that no longer exist are skipped."""
    async with engine.begin() as connection:
        await connection.execute(_USES, {"ids": list(days), "days": list(days.values())})


async def register_model(
    engine: AsyncEngine, name: str, *, context_length: int, vocab_size: int, card: str
) -> uuid.UUID:
    """The id of the model called `name`. Its row is created if the model is new, and never changed here."""
    row = {
        "id": uuid7(),
        "alias": name,
        "context_length": context_length,
        "vocab_size": vocab_size,
        "card": card,
    }
    async with engine.begin() as connection:
        known = select(models.c.id).where(models.c.alias == name)
        model_id = (await connection.execute(known)).scalar_one_or_none()
        if model_id is None:
            await connection.execute(insert(models).values(row).on_conflict_do_nothing(index_elements=["alias"]))
            model_id = (await connection.execute(known)).scalar_one()
        return model_id
