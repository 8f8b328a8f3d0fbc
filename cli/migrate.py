"""`forebay migrate`: bring the database to this version's schema, or only look."""

import asyncio

import cyclopts
from sqlalchemy.exc import SQLAlchemyError

from cli import database
from cli.errors import CommandError
from gateway.db import migrate as schema
from gateway.db import pools

app = cyclopts.App(name="migrate", help="Bring the database to this version's schema.")


@app.default
def migrate(*, check: bool = False) -> None:
    """Run pending migrations on FOREBAY_POSTGRES_URL. Any number may run at once; one does the work.

    Parameters
    ----------
    check
        Change nothing; fail when the schema is older or newer than this version's.
    """
    try:
        if check:
            print(f"schema is at revision {asyncio.run(schema.check(database.url()))}")
            return
        before, after = asyncio.run(schema.upgrade(database.url()))
    except schema.SchemaError as error:
        raise CommandError(str(error)) from error
    except (SQLAlchemyError, *pools.AWAY) as error:
        raise CommandError(f"the database cannot be migrated: {str(error).splitlines()[0]}") from error
    print(
        f"schema is at revision {after}"
        if before == after
        else f"schema migrated from {before or 'nothing'} to {after}"
    )
