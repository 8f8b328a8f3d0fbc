"""A small world for bills: tenants, models and prices by plain SQL, and events through the real writer."""

import asyncio
import datetime as dt
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from gateway.db import pools
from gateway.ledger.writer import Writer
from shared import wire
from shared.ids import uuid7
from tests.integration.test_ledger import event

UTC = dt.UTC


def at(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=UTC)


class World:
    """`name` arguments name tenants, models and plans; each is created on first use."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.writer = Writer(pool)

    async def plan(self, name: str) -> uuid.UUID:
        return await self.pool.fetchval("SELECT id FROM plans WHERE name = $1", name)

    async def tenant(self, name: str, plan: str = "standard") -> uuid.UUID:
        return await self.pool.fetchval(
            "INSERT INTO tenants (name, plan_id) VALUES ($1, $2) RETURNING id", name, await self.plan(plan)
        )

    async def model(self, name: str) -> uuid.UUID:
        return await self.pool.fetchval(
            "INSERT INTO models (alias, context_length, vocab_size, card) VALUES ($1, 9, 9, '') RETURNING id", name
        )

    async def price(
        self,
        model: uuid.UUID,
        upm: tuple[int, int, int],
        *,
        plan: str | None = None,
        since: dt.datetime,
        until: dt.datetime | None = None,
        currency: str = "EUR",
    ) -> uuid.UUID:
        return await self.pool.fetchval(
            "INSERT INTO prices (model_id, plan_id, input_upm, cached_input_upm, output_upm, currency, valid_from,"
            " valid_to) VALUES ($1, $2, $3, $4, $5, $8, $6, $7) RETURNING id",
            model,
            None if plan is None else await self.plan(plan),
            *upm,
            since,
            until,
            currency,
        )

    async def book(
        self, made_at: dt.datetime, *, tenant: uuid.UUID, model: uuid.UUID, **fields: Any
    ) -> tuple[uuid.UUID, int | None]:
        """Book one event of a request made then; its id and its cost."""
        request = uuid7(made_at.timestamp())
        await self.write(event(request, tenant=str(tenant), model=str(model), **fields))
        return request, await self.pool.fetchval("SELECT cost_micro FROM usage_events WHERE request_id = $1", request)

    async def settled(self) -> None:
        """Wait until no transaction is open that began before now: the server's own upkeep can hold lines back too."""
        mine = await self.pool.fetchval("SELECT pg_current_xact_id()")
        async with asyncio.timeout(60):
            while await self.pool.fetchval("SELECT lines_end()") <= mine:
                await asyncio.sleep(0.01)

    async def write(self, *events: wire.UsageEvent) -> None:
        await self.writer.write([wire.encode(one) for one in events])


@asynccontextmanager
async def world(database_url: str) -> AsyncGenerator[World]:
    async with pools.create(database_url, connections_max=4) as pool:
        yield World(pool)
