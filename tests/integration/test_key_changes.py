"""How gateways hear of changes: late commits, rollbacks, gaps, a server that is behind, a pooler in between."""

import contextlib

import asyncpg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db import engine, queries
from gateway.db.changes import ALL, Changes
from tests.integration.test_principals import make_key


async def test_a_commit_that_comes_late_is_seen(
    database: AsyncEngine, database_url: str, sql: asyncpg.Connection
) -> None:
    """A transaction opened first and committed last, around another tenant's change and two looks."""
    await make_key(database, "early")
    await make_key(database, "late")
    ids = {record["name"]: record["id"] for record in await sql.fetch("SELECT name, id FROM tenants")}
    changes = Changes(database)
    assert await changes.look(0) == ALL
    assert await changes.look(0) == frozenset()
    slow = await asyncpg.connect(database_url)
    try:
        async with slow.transaction():
            await slow.execute("UPDATE tenants SET status = 'suspended' WHERE name = 'late'")
            await sql.execute("UPDATE tenants SET status = 'suspended' WHERE name = 'early'")
            assert await changes.look(0) == {ids["early"]}
            assert await changes.look(0) == frozenset()
        assert await changes.look(0) == {ids["late"]}
        assert await changes.look(0) == frozenset()
    finally:
        await slow.close()


async def test_a_change_rolled_back_is_none(database: AsyncEngine, sql: asyncpg.Connection) -> None:
    changes = Changes(database)
    await changes.look(0)
    with contextlib.suppress(ZeroDivisionError):
        async with sql.transaction():
            await sql.execute("UPDATE plans SET tier = 2")
            raise ZeroDivisionError
    assert await changes.look(0) == frozenset()


async def test_a_plans_change_and_a_long_gap_concern_everybody(database: AsyncEngine, sql: asyncpg.Connection) -> None:
    changes = Changes(database)
    await changes.look(0)
    await sql.execute("UPDATE plans SET tier = 2")
    assert await changes.look(1) == ALL
    assert await changes.look(2) == frozenset()
    assert await changes.look(100_000) == ALL


async def test_too_many_changes_concern_everybody(database: AsyncEngine, sql: asyncpg.Connection) -> None:
    changes = Changes(database)
    await changes.look(0)
    await sql.execute("INSERT INTO config_changes (tenant_id) SELECT gen_random_uuid() FROM generate_series(1, 10001)")
    assert await changes.look(1) == ALL


async def test_a_server_that_was_behind_makes_everything_suspect(database: AsyncEngine) -> None:
    """As after a failover to one that had not replayed everything: its oldest transaction is older than ours."""
    changes = Changes(database)
    await changes.look(0)
    assert await changes.look(1) == frozenset()
    assert changes._since is not None
    changes._since += 1_000
    assert await changes.look(2) == ALL
    assert await changes.look(3) == frozenset()


async def test_no_statement_is_prepared_by_name_so_that_a_pooler_may_stand_between(database_url: str) -> None:
    database = engine.create(database_url, connections_max=1)
    try:
        key = await make_key(database)
        for _ in range(7):  # the driver would name a statement at its sixth use
            await queries.find_key(database, key.split("-")[2])
            await Changes(database).look(0)
        async with database.connect() as connection:
            named = (await connection.execute(text("SELECT name FROM pg_prepared_statements WHERE name <> ''"))).all()
        assert named == []
    finally:
        await database.dispose()
