"""One transaction per change, or a part of the caller's. Turns the schema's refusals into errors of the catalogue."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from gateway.db.catalogue.errors import AlreadyExists, CatalogueError, Refused
from gateway.db.catalogue.rules import ANY, RULES

Database = AsyncEngine | AsyncConnection
"""An engine: the function opens its own transaction. A connection: the function joins the transaction open on it."""

UNIQUE_VIOLATION = "23505"
FOREIGN_KEY_VIOLATION = "23503"
INTEGRITY_VIOLATION = "23"  # the class of those two and of checks
DATA_EXCEPTION = "22"  # a number out of its type's range, a text with a NUL


@asynccontextmanager
async def connected(database: Database) -> AsyncGenerator[AsyncConnection]:
    """A connection for reading. Raises Refused for a text or number that Postgres cannot hold."""
    with _refusing("this"):
        if isinstance(database, AsyncConnection):
            yield database
        else:
            async with database.connect() as connection:
                yield connection


@asynccontextmanager
async def transaction(database: Database, what: str) -> AsyncGenerator[AsyncConnection]:
    """A transaction that changes `what`, which an error's message names. Raises AlreadyExists, Refused."""
    with _refusing(what):
        if isinstance(database, AsyncConnection):
            yield database
        else:
            async with database.begin() as connection:
                yield connection


@contextmanager
def _refusing(what: str) -> Generator[None]:
    try:
        yield
    except DBAPIError as error:
        refusal = _refusal(error, what)
        if refusal is None:
            raise
        raise refusal from error


def _refusal(error: DBAPIError, what: str) -> CatalogueError | None:
    state = str(getattr(error.orig, "sqlstate", ""))
    if state == UNIQUE_VIOLATION:
        return AlreadyExists(f"{what} exists already")
    if state == FOREIGN_KEY_VIOLATION:
        return Refused(f"{what} is refused: something else names it, or it names what is not there")
    if state.startswith(INTEGRITY_VIOLATION):
        return Refused(f"{what} is refused: {_rule(error)}")
    if state.startswith(DATA_EXCEPTION):
        return Refused(f"{what} is refused: a value is out of range")
    return None


def _rule(error: DBAPIError) -> str:
    cause = error.orig.__cause__ if error.orig is not None else None
    return RULES.get(str(getattr(cause, "constraint_name", None)), ANY)
