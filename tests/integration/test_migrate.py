"""Schema migrations: many at once, killed half-way, newer than the code, and what the SQLAlchemy tables say of them."""

import asyncio
import contextlib
import re
import signal
import sys
import uuid
from collections.abc import AsyncGenerator, AsyncIterator

import asyncpg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection

from gateway.db import engine, pools, tables
from gateway.db.migrate import SchemaBusy, SchemaMisplaced, SchemaTooNew, SchemaTooOld, check, head, upgrade
from tests import services

UPGRADE = """
import asyncio, sys
from gateway.db.migrate import upgrade
asyncio.run(upgrade(sys.argv[1], lock_wait_ms=600_000))
"""


@pytest.fixture
async def empty_url(postgres_url: str) -> AsyncIterator[str]:
    name = f"empty_{uuid.uuid4().hex[:12]}"
    async with connected(postgres_url) as connection:
        await connection.execute(f'CREATE DATABASE "{name}"')
        yield services.database_url(postgres_url, name)
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncGenerator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def start(url: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(sys.executable, "-c", UPGRADE, url, stderr=asyncio.subprocess.PIPE)


async def test_four_processes_at_once(empty_url: str) -> None:
    processes = [await start(empty_url) for _ in range(4)]
    errors = [(await process.communicate())[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, errors
    async with connected(empty_url) as connection:
        assert await connection.fetch("SELECT version_num FROM alembic_version") == [(head(),)]
        assert await connection.fetchval("SELECT count(*) FROM tiers") == 3
        assert await connection.fetchval("SELECT count(*) FROM plans") == 3


async def test_a_killed_run_leaves_nothing_and_the_next_finishes(empty_url: str) -> None:
    """Killed in its third revision, held up there by a lock on what it has to create."""
    others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'forebay'"
    async with connected(empty_url) as blocker, connected(empty_url) as watcher:
        held = blocker.transaction()
        await held.start()
        await blocker.execute("CREATE TABLE usage_rejected (unrelated int)")
        process = await start(empty_url)
        while not await watcher.fetchval(f"{others} AND wait_event_type = 'Lock'"):
            assert process.returncode is None
            await asyncio.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        await process.communicate()
        await held.rollback()
        while await watcher.fetchval(others):
            await asyncio.sleep(0.02)
        assert await watcher.fetchval("SELECT to_regclass('alembic_version')") is None
        assert await watcher.fetchval("SELECT to_regclass('tenants')") is None
    assert await upgrade(empty_url) == (None, head())
    assert await upgrade(empty_url) == (head(), head())


async def test_a_table_that_somebody_holds_is_not_waited_for(empty_url: str) -> None:
    """Whoever comes for the table meanwhile would wait behind the migration."""
    async with connected(empty_url) as dump:
        held = dump.transaction()
        await held.start()
        await dump.execute("CREATE TABLE usage_rejected (unrelated int)")
        with pytest.raises(SchemaBusy, match="try again"):
            await upgrade(empty_url, lock_wait_ms=1)
        await held.rollback()
        assert await dump.fetchval("SELECT to_regclass('tenants')") is None


@pytest.mark.parametrize(
    ("made", "settings", "told"),
    [
        ("TEMPLATE template0 ENCODING 'SQL_ASCII' LOCALE 'C'", (), "encoding is SQL_ASCII"),
        ("", ("ALTER DATABASE {0} SET search_path = ''",), "made nowhere"),
        ("", ("CREATE SCHEMA app", "ALTER DATABASE {0} SET search_path = app, public"), "in the schema app"),
    ],
)
async def test_a_database_that_could_not_hold_it_is_refused_before_anything_is_made(
    postgres_url: str, made: str, settings: tuple[str, ...], told: str
) -> None:
    name = f"misplaced_{uuid.uuid4().hex[:12]}"
    async with connected(postgres_url) as server:
        await server.execute(f"CREATE DATABASE {name} {made}")
        async with connected(services.database_url(postgres_url, name)) as connection:
            for statement in settings:
                await connection.execute(statement.format(name))
        with pytest.raises(SchemaMisplaced, match=told):
            await upgrade(services.database_url(postgres_url, name))
        await server.execute(f"DROP DATABASE {name} WITH (FORCE)")


async def test_a_newer_schema_is_refused(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaTooNew, match="revision 9999, newer than this program's"):
        await upgrade(database_url)
    with pytest.raises(SchemaTooNew):
        await check(database_url)


async def test_an_empty_database_is_too_old(empty_url: str, database_url: str) -> None:
    with pytest.raises(SchemaTooOld, match="forebay migrate"):
        await check(empty_url)
    assert await check(database_url) == head()


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
async def test_the_tables_in_code_are_those_in_the_database(database_url: str) -> None:
    """Columns and types; what the database has besides (indexes, defaults, constraints) is the migrations' business."""

    def compare(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return compare_metadata(context, tables.metadata)

    database = engine.create(database_url)
    try:
        async with database.connect() as connection:
            found = await connection.run_sync(compare)
    finally:
        await database.dispose()
    kinds = ("add_table", "add_column", "modify_type", "modify_nullable")
    flat = [change for entry in found for change in (entry if isinstance(entry, list) else [entry])]
    assert [change for change in flat if change[0] in kinds] == []
    ours = {table.name for table in tables.metadata.tables.values()}
    missing = [change for change in flat if change[0] == "remove_column" and change[2] in ours]
    assert {change[3].name for change in missing} <= {"xid"}


async def test_the_metrics_in_code_are_those_that_the_database_takes(database_url: str) -> None:
    known = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'quotas_metric_known'"
    async with connected(database_url) as connection:
        definition = await connection.fetchval(known)
    assert sorted(re.findall(r"'(\w+)'", definition)) == sorted(tables.QUOTA_METRICS)


async def test_the_application_role_cannot_change_a_bill(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute("SET ROLE forebay_app")
        await connection.fetch("SELECT * FROM usage_events")
        for statement in ("UPDATE usage_events SET attempt = 2", "DELETE FROM usage_events"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.fetchval("SELECT make_usage_partitions(7)")  # the template may be of yesterday
        assert await connection.fetchval("SELECT make_usage_partitions(9)") == 2
        await connection.execute("SELECT renew_leases('gw', '{}', 1000), expire_leases(1), prune_config_changes()")
        await connection.execute("INSERT INTO tenants (name, plan_id) SELECT 'x', id FROM plans LIMIT 1")
        await connection.execute("RESET ROLE; SET ROLE forebay_billing")
        await connection.fetch("SELECT * FROM usage_events")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM api_keys")


async def test_the_url_may_say_how_to_connect(database_url: str) -> None:
    """Both ways of connecting read it alike."""
    url = f"{database_url}?sslmode=disable"
    assert await check(url) == head()
    async with pools.create(url, connections_max=1) as pool:
        assert await pool.fetchval("SELECT 1") == 1
