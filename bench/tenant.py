"""A tenant for loads: its limits are checked at every request and never reached, and its bills are counted."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import keys
from gateway.admission.limiter import Limit
from gateway.auth import quotas
from gateway.db import catalogue, engine, queries, usage
from gateway.db.catalogue import Limits
from gateway.db.queries import StoredKey
from gateway.db.tables import tiers

LIMITS = Limits(rpm=100_000_000, tpm=10_000_000_000)
TIER = 0
POLL_S = 0.05


class Tenant:
    """Made by `create`."""

    def __init__(self, database: AsyncEngine, name: str, key: str, stored: StoredKey) -> None:
        self._database = database
        self._name = name
        self.key = key
        self.tenant_id: uuid.UUID = stored.tenant_id
        self.key_id: uuid.UUID = stored.key_id
        self.limits: tuple[Limit, ...] = quotas.limits(stored)

    async def bills(self, *, expected: int, seconds_max: float) -> int:
        """The number of billed requests, once it is `expected` or the time is over."""
        deadline_s = time.monotonic() + seconds_max
        while True:
            found = sum(row.requests for row in await usage.totals(self._database, tenant=self._name))
            if found >= expected or time.monotonic() > deadline_s:
                return found
            await asyncio.sleep(POLL_S)


@asynccontextmanager
async def create(postgres_url: str, *, tier: int = TIER, limits: Limits = LIMITS) -> AsyncGenerator[Tenant]:
    """A new tenant with one key, in a throw-away database."""
    database = engine.create(postgres_url, connections_max=1)
    try:
        name = f"bench-{uuid.uuid4().hex[:8]}"
        plan = await catalogue.plan_of_tier(database, tier)
        await catalogue.create_tenant(database, name, plan=plan, limits=limits)
        text, record = keys.generate("bench")
        await catalogue.create_key(database, name, record, scopes=frozenset({"inference"}))
        stored = await queries.find_key(database, record.public_id)
        assert stored is not None
        yield Tenant(database, name, text, stored)
    finally:
        await database.dispose()


async def bound(postgres_url: str, *, first_token_ms_max: int | None, wait_ms_max: int) -> None:
    """Set how long requests of the tier may wait."""
    database = engine.create(postgres_url, connections_max=1)
    try:
        async with database.begin() as connection:
            bounds = {"first_token_ms_max": first_token_ms_max, "wait_ms_max": wait_ms_max}
            await connection.execute(update(tiers).where(tiers.c.id == TIER).values(bounds))
    finally:
        await database.dispose()
