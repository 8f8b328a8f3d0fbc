"""Runs a revision's SQL file as it stands: many statements, dollar-quoted functions and all."""

from pathlib import Path
from typing import cast

import asyncpg
from alembic import op
from sqlalchemy import AdaptedConnection, Connection


def run(revision_file: str) -> None:
    """Execute the `.sql` file beside `revision_file`, inside the transaction that Alembic is in.

    SQLAlchemy prepares what it executes, and Postgres prepares one statement at a time; the driver's own
    `execute` without arguments takes a script.
    """
    script = Path(revision_file).with_suffix(".sql").read_text(encoding="utf-8")
    connection: Connection = op.get_bind()
    adapted = cast("AdaptedConnection", connection.connection.dbapi_connection)

    async def execute(driver: asyncpg.Connection) -> None:
        await driver.execute(script)

    adapted.run_async(execute)
