"""Connections to the database of a test, for the tests that look at rows or change them behind a gateway's back."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.db import engine


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    """The gateway's own kind of connection, for the catalogue's functions."""
    database = engine.create(database_url)
    yield database
    await database.dispose()


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """An administrator in psql."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()
