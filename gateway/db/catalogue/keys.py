"""API keys: create, change, rotate, revoke. Of a secret, only its digest comes here."""

import uuid
from collections.abc import Collection
from datetime import date, datetime, timedelta
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import Select, Text, any_, cast, func, insert, select, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue import limits as own_limits
from gateway.db.catalogue.errors import NotFound, Refused
from gateway.db.catalogue.limits import NO_LIMITS, Limits
from gateway.db.catalogue.models import find_model
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.tenants import find_tenant
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import api_keys, key_uses, models, quotas, tenants
from gateway.keys import KeyRecord, redact
from shared.ids import uuid7


class KeyRow(msgspec.Struct, frozen=True, kw_only=True):
    """`models` and `networks`: null allows all, an empty list none."""

    id: uuid.UUID
    tenant: str
    public_id: str
    env: str
    last4: str
    name: str
    scopes: tuple[str, ...]
    models: tuple[str, ...] | None
    networks: tuple[str, ...] | None
    limits: Limits
    expires_at: datetime | None
    revoked_at: datetime | None
    former_until: datetime | None  # the secret before the last rotation works until then
    last_used_on: date | None
    created_at: datetime


def _keys() -> "Select[*tuple[Any, ...]]":
    named = select(func.array_agg(models.c.alias)).where(models.c.id == any_(api_keys.c.models))
    columns = [column for column in api_keys.c if column.name not in ("secret_digest", "former_digest")]
    return (
        select(
            *columns,
            tenants.c.name.label("tenant"),
            key_uses.c.last_used_on,
            cast(api_keys.c.networks, ARRAY(Text)).label("network_names"),
            named.correlate(api_keys).scalar_subquery().label("model_names"),
            own_limits.limits_of(quotas.c.api_key_id, api_keys.c.id).label("limits"),
        )
        .join(tenants, tenants.c.id == api_keys.c.tenant_id)
        .outerjoin(key_uses, key_uses.c.api_key_id == api_keys.c.id)
    )


def _row(row: Any) -> KeyRow:
    return KeyRow(
        id=row.id,
        tenant=row.tenant,
        public_id=row.public_id,
        env=row.env,
        last4=row.last4,
        name=row.name,
        scopes=tuple(row.scopes),
        models=None if row.models is None else tuple(sorted(row.model_names or ())),
        networks=None if row.networks is None else tuple(row.network_names),
        limits=own_limits.read(row.limits),
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        former_until=row.former_until,
        last_used_on=row.last_used_on,
        created_at=row.created_at,
    )


async def list_keys(database: Database, tenant: str | None = None, paging: Paging = EVERYTHING) -> list[KeyRow]:
    """All keys, or a tenant's, oldest first. Of a secret, only the last four characters are stored in readable form.
    Raises NotFound (tenant).
    """
    statement = _keys()
    async with connected(database) as connection:
        if tenant is not None:
            statement = statement.where(tenants.c.id == (await find_tenant(connection, tenant)).id)
        rows = (await connection.execute(paging.of(statement, api_keys.c.id))).all()
    return [_row(row) for row in rows]


async def find_key(database: Database, public_id: str) -> KeyRow:
    """Raises NotFound."""
    async with connected(database) as connection:
        row = (await connection.execute(_keys().where(api_keys.c.public_id == public_id))).one_or_none()
    if row is None:
        raise NotFound(f"there is no key {public_id}")
    return _row(row)


async def create_key(
    database: Database,
    tenant: str,
    record: KeyRecord,
    *,
    scopes: Collection[str],
    name: str = "",
    models: Collection[str] | None = None,
    networks: Collection[str] | None = None,
    expires_at: datetime | None = None,
    limits: Limits = NO_LIMITS,
    by: Author = SYSTEM,
) -> KeyRow:
    """Store a key that `keys.generate` made. Raises NotFound (tenant, model), AlreadyExists (public id), Refused."""
    async with transaction(database, f"a key {record.public_id}") as connection:
        key_id = uuid7()
        row = {
            "id": key_id,
            "public_id": record.public_id,
            "tenant_id": (await find_tenant(connection, tenant)).id,
            "env": record.env,
            "secret_digest": record.digest,
            "last4": record.last4,
            "name": _without_secret(name),
            "scopes": sorted(scopes),
            "models": await _model_ids(connection, models),
            "networks": _listed(networks),
            "expires_at": expires_at,
        }
        await connection.execute(insert(api_keys).values(row))
        await own_limits.write(connection, "api_key_id", key_id, limits)
        made = await find_key(connection, record.public_id)
        await audit.record(connection, by, "create", "key", record.public_id, after=made)
        return made


async def update_key(
    database: Database,
    public_id: str,
    *,
    name: str | UnsetType = UNSET,
    models: Collection[str] | UnsetType | None = UNSET,
    networks: Collection[str] | UnsetType | None = UNSET,
    expires_at: datetime | UnsetType | None = UNSET,
    limits: Limits = NO_LIMITS,
    by: Author = SYSTEM,
) -> KeyRow:
    """Raises NotFound (key, model), Refused."""
    async with transaction(database, f"the key {public_id}") as connection:
        before = await _locked(connection, public_id)
        stated = {
            "name": name if name is UNSET else _without_secret(name),
            "models": models if models is UNSET else await _model_ids(connection, models),
            "networks": networks if networks is UNSET else _listed(networks),
            "expires_at": expires_at,
        }
        if values := {column: value for column, value in stated.items() if value is not UNSET}:
            await connection.execute(update(api_keys).where(api_keys.c.id == before.id).values(values))
        await own_limits.write(connection, "api_key_id", before.id, limits)
        return await _changed(connection, by, "update", before)


async def rotate_key(database: Database, record: KeyRecord, *, overlap_s: int, by: Author = SYSTEM) -> KeyRow:
    """Replace the secret of a key by one made by `keys.renew`. The previous secret works for `overlap_s` more seconds,
    and older ones stop. While an older one is still within its overlap, only a rotation without overlap is accepted.
    Raises NotFound, Refused.
    """
    async with transaction(database, f"the key {record.public_id}") as connection:
        before = await _locked(connection, record.public_id)
        moment = (await connection.execute(select(func.now()))).scalar_one()
        _check_rotation(before, moment, overlap_s)
        values = {
            "secret_digest": record.digest,
            "last4": record.last4,
            "former_digest": api_keys.c.secret_digest if overlap_s else None,
            "former_until": moment + timedelta(seconds=overlap_s) if overlap_s else None,
        }
        await connection.execute(update(api_keys).where(api_keys.c.id == before.id).values(values))
        return await _changed(connection, by, "rotate", before)


async def revoke_key(database: Database, public_id: str, *, by: Author = SYSTEM) -> KeyRow:
    """Idempotent: the time of the first revocation is kept. Raises NotFound."""
    async with transaction(database, f"the key {public_id}") as connection:
        before = await _locked(connection, public_id)
        if before.revoked_at is not None:
            return before
        await connection.execute(update(api_keys).where(api_keys.c.id == before.id).values(revoked_at=func.now()))
        return await _changed(connection, by, "revoke", before)


async def _locked(connection: AsyncConnection, public_id: str) -> KeyRow:
    await connection.execute(select(api_keys.c.id).where(api_keys.c.public_id == public_id).with_for_update())
    return await find_key(connection, public_id)


async def _changed(connection: AsyncConnection, by: Author, action: str, before: KeyRow) -> KeyRow:
    after = await find_key(connection, before.public_id)
    await audit.record(connection, by, action, "key", before.public_id, before=before, after=after)
    return after


def _check_rotation(key: KeyRow, moment: datetime, overlap_s: int) -> None:
    if key.revoked_at is not None:
        raise Refused(f"the key {key.public_id} is revoked")
    if key.expires_at is not None and key.expires_at <= moment:
        raise Refused(f"the key {key.public_id} has expired")
    if overlap_s and key.former_until is not None and key.former_until > moment:
        raise Refused(
            f"the former secret of {key.public_id} works until {key.former_until:%Y-%m-%d %H:%M:%S} UTC;"
            " rotate without an overlap to stop it now"
        )


async def _model_ids(connection: AsyncConnection, names: Collection[str] | None) -> list[uuid.UUID] | None:
    return None if names is None else [(await find_model(connection, name)).id for name in sorted(set(names))]


def _listed(networks: Collection[str] | None) -> list[str] | None:
    return None if networks is None else sorted(set(networks))


def _without_secret(name: str) -> str:
    if redact(name) != name:
        raise Refused("a key's name must not contain a key")
    return name
