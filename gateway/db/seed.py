"""The demo tenants of `forebay up`, with a key each. Safe to run at every start."""

import contextlib
from collections.abc import Mapping

import msgspec
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import keys
from gateway.db import catalogue, engine, queries
from gateway.db.catalogue import AlreadyExists, Limits

ENV = "demo"


class DemoTenant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    tier: int
    limits: Limits = Limits()
    admin: bool = False


TENANTS = (
    DemoTenant(name="acme", tier=0, limits=Limits(rpm=6_000, tpm=2_000_000)),
    DemoTenant(name="hobby", tier=2, limits=Limits(rpm=120, tpm=20_000)),
    DemoTenant(name="admin", tier=0, admin=True),
)


async def demo(url: str, known_keys: Mapping[str, str]) -> dict[str, str]:
    """Create the demo tenants that are missing, and return each one's key, by tenant. Keys in `known_keys` are reused,
    even in a database that has never seen them. Limits that were changed stay changed.
    """
    database = engine.create(url, connections_max=1)
    try:
        keys_by_tenant: dict[str, str] = {}
        for tenant in TENANTS:
            keys_by_tenant[tenant.name] = await _seed(database, tenant, known_keys.get(tenant.name))
        return keys_by_tenant
    finally:
        await database.dispose()


async def _seed(database: AsyncEngine, tenant: DemoTenant, known_key: str | None) -> str:
    if tenant.name not in {row.name for row in await catalogue.list_tenants(database)}:
        plan = await catalogue.plan_of_tier(database, tenant.tier)
        with contextlib.suppress(AlreadyExists):  # another `up` created it first
            await catalogue.create_tenant(database, tenant.name, plan=plan, limits=tenant.limits)
    text, record = known_key, keys.record(known_key) if known_key else None
    if text is None or record is None:
        text, record = keys.generate(ENV)
    stored = await queries.find_key(database, record.public_id)
    if stored is None:
        scopes = frozenset({"admin" if tenant.admin else "inference"})
        with contextlib.suppress(AlreadyExists):
            await catalogue.create_key(database, tenant.name, record, scopes=scopes, name="demo")
    return text
