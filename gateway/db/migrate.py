"""Migrates a database to the schema that this program was written for, and checks whether it has that schema.

Invariant: a database is at one revision or another, never between. All pending revisions run in one transaction that
holds an advisory lock of the transaction's own, which also holds through a pooler in transaction mode; so a killed
run leaves nothing behind, and of many that start at once the first does the work. A migration that waits for a table
makes everybody wait who comes after it, gateways first, so it does not wait for long behind a dump or a forgotten
transaction.
"""

from pathlib import Path
from typing import Final

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

import migrations
from gateway.db import engine

LOCK_KEY = 0x666F7265626179  # "forebay"
LOCK_WAIT_MS: Final = 3_000  # for each table; other migrations are waited for without end


class SchemaError(Exception):
    """The database's schema is not the one that this program needs. The message says what to do."""


class SchemaTooNew(SchemaError):
    """A later version of Forebay has migrated this database."""


class SchemaTooOld(SchemaError):
    """Migrations are pending."""


class SchemaBusy(SchemaError):
    """Another session holds a lock on a table that a migration must change. Nothing was changed."""


class SchemaMisplaced(SchemaError):
    """The database, or the account, is not set up for what is migrated. Nothing was changed."""


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def head() -> str:
    """The revision that this program was written for."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    assert revision is not None
    return revision


def _refuse_newer(revision: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaTooNew(
            f"the database's schema is at revision {revision}, newer than this program's {head()}: upgrade the program"
        )


def _refuse_misplaced(connection: Connection) -> None:
    encoding, schema = connection.execute(text("SELECT current_setting('server_encoding'), current_schema()")).one()
    if encoding != "UTF8":
        raise SchemaMisplaced(
            f"the database's encoding is {encoding}, which holds not every name: create it with"
            " ENCODING 'UTF8' TEMPLATE template0"
        )
    if schema != "public":
        where = "nowhere" if schema is None else f"in the schema {schema}"
        raise SchemaMisplaced(
            f"the account's search_path would have tables made {where}; its first schema that exists must be public"
        )


def _upgrade(connection: Connection, lock_wait_ms: int) -> tuple[str | None, str]:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
    connection.execute(text("SELECT set_config('lock_timeout', :wait, true)"), {"wait": f"{lock_wait_ms}ms"})
    _refuse_misplaced(connection)
    before = _revision(connection)
    _refuse_newer(before)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    return before, head()


async def upgrade(url: str, *, lock_wait_ms: int = LOCK_WAIT_MS) -> tuple[str | None, str]:
    """Run pending migrations and return the revisions before and after. Raises SchemaTooNew, SchemaBusy,
    SchemaMisplaced.
    """
    database = engine.create(url, connections_max=1, command_timeout_s=None)
    try:
        async with database.begin() as connection:
            return await connection.run_sync(_upgrade, lock_wait_ms)
    except asyncpg.LockNotAvailableError as error:
        busy = "a table that has to be changed is held by another transaction, of a dump perhaps; nothing was changed"
        raise SchemaBusy(f"{busy}: try again when it has ended") from error
    finally:
        await database.dispose()


async def check(url: str) -> str:
    """The database's revision if it is this program's. Raises SchemaTooOld or SchemaTooNew."""
    database = engine.create(url, connections_max=1)
    try:
        async with database.connect() as connection:
            revision = await connection.run_sync(_revision)
    finally:
        await database.dispose()
    _refuse_newer(revision)
    if revision != head():
        raise SchemaTooOld(
            f"the database's schema is at revision {revision}, older than this program's {head()}:"
            " run `forebay migrate`"
        )
    return head()
