"""Access to the database for the administrative commands: the URL is in the environment, and errors become one
sentence.
"""

import asyncio
import getpass
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from cli.errors import CommandError
from gateway.db import engine, migrate, pools
from gateway.db.audit import Author
from gateway.db.catalogue import CatalogueError
from shared.settings import Secret, load

T = TypeVar("T")


class DatabaseSettings(msgspec.Struct, frozen=True, kw_only=True):
    postgres_url: Secret


def url() -> str:
    """Raises CommandError when FOREBAY_POSTGRES_URL is not set."""
    if not os.environ.get("FOREBAY_POSTGRES_URL"):
        raise CommandError("FOREBAY_POSTGRES_URL is not set: source the demo.env of `forebay up`, or name the database")
    return load(DatabaseSettings, os.environ).postgres_url.reveal()


def run(work: Callable[[AsyncEngine], Awaitable[T]]) -> T:
    """The result of `work` on the database. Raises CommandError."""

    async def connect_and_work() -> T:
        async with connected() as database:
            return await work(database)

    return asyncio.run(connect_and_work())


def author() -> Author:
    """The user who runs the command, as the audit log records it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # an account without a name
        user = str(os.getuid())
    return Author(actor=f"cli:{user}")


@asynccontextmanager
async def connected() -> AsyncGenerator[AsyncEngine]:
    """An engine for one command. Every error inside becomes a CommandError."""
    address = url()
    database = engine.create(address, connections_max=1)
    try:
        await migrate.check(address)
        yield database
    except (CatalogueError, migrate.SchemaError) as error:
        raise CommandError(str(error)) from error
    except (SQLAlchemyError, *pools.AWAY) as error:
        raise CommandError(f"Postgres cannot be asked: {reason(error)}") from error
    finally:
        await database.dispose()


def reason(error: BaseException) -> str:
    """The first line of what `error` says; SQLAlchemy's further lines are the statement."""
    return (str(error) or type(error).__name__).splitlines()[0]
