"""The day of a key's last use: written once a day, without telling gateways of a change."""

import uuid
from datetime import UTC, date, datetime

import asyncpg
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import keys
from gateway.auth.principals import Principals
from gateway.auth.uses import KeyUses
from gateway.db import catalogue, engine
from tests.clocks import HandClock
from tests.integration.test_principals import header, make_key, refused


async def test_a_use_is_written_once_a_day_and_is_no_change(database: AsyncEngine, sql: asyncpg.Connection) -> None:
    clock = HandClock(now=datetime(2026, 11, 29, 23, 59, tzinfo=UTC).timestamp())
    text = await make_key(database)
    key_id = await sql.fetchval("SELECT id FROM api_keys")
    changes = await sql.fetchval("SELECT count(*) FROM config_changes")
    async with KeyUses(database, clock=clock) as uses:
        uses.note(key_id)
        uses.note(uuid.uuid4())  # a key that is gone meanwhile
        await uses.flush()
        [listed] = await catalogue.list_keys(database)
        assert listed.last_used_on == date(2026, 11, 29)
        statements: list[str] = []
        event.listen(database.sync_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
        uses.note(key_id)
        await uses.flush()
        assert statements == []
        clock.now += 120
        uses.note(key_id)
    assert (await catalogue.find_key(database, text.split("-")[2])).last_used_on == date(2026, 11, 30)
    assert await sql.fetchval("SELECT count(*) FROM config_changes") == changes


async def test_it_waits_while_postgres_is_away() -> None:
    nowhere = engine.create("postgresql://nobody@127.0.0.1:1/nothing")
    try:
        async with KeyUses(nowhere) as uses:
            uses.note(uuid.uuid4())
            await uses.flush()
            assert len(uses._waiting) == 1
    finally:
        await nowhere.dispose()


async def test_only_a_key_that_is_good_counts_as_used(database: AsyncEngine) -> None:
    used: list[uuid.UUID] = []
    async with Principals(database, on_use=used.append) as principals:
        good = await make_key(database)
        assert await refused(principals, keys.renew("test", good.split("-")[2])[0])
        assert used == []
        principal = await principals.resolve(header(good))
        assert used == [principal.key_id]
