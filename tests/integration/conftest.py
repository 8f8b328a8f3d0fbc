"""What many tests start from: connections to the database, the limiter of a gateway over one, a gateway with scripted
neighbours, and the official client.
"""

from collections.abc import AsyncIterator

import asyncpg
import openai
import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.admission.pg_limiter import PgLimiter
from gateway.db import engine, pools
from tests.scripted_gateway import KEY, ScriptedGateway, scripted_gateway


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


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[asyncpg.Pool]:
    """As a gateway has it for requests."""
    async with pools.create(database_url, connections_max=8) as pool:
        yield pool


@pytest.fixture
def patient_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer of Postgres counts as late, on a machine that stands still for seconds."""
    for module in ("pg_limiter.ADMIT", "leases", "database_clock", "settling"):
        name, _, which = module.partition(".")
        monkeypatch.setattr(f"gateway.admission.{name}.{which and which + '_'}TIMEOUT_S", 60.0)
    monkeypatch.setattr("gateway.admission.pg_limiter.OVERDUE_WAIT_S", 60.0)


@pytest.fixture
async def limiter(pool: asyncpg.Pool, patient_limits: None) -> AsyncIterator[PgLimiter]:
    """Of the gateway gw-a."""
    async with PgLimiter(pool, gateway_id="gw-a") as limiter:
        yield limiter


@pytest.fixture
async def gateway() -> AsyncIterator[ScriptedGateway]:
    """Without a database. At its end every job must have been settled once."""
    async with scripted_gateway() as gateway:
        yield gateway
        await gateway.check_settled()


@pytest.fixture
async def client(gateway: ScriptedGateway) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=gateway.base + "/v1", api_key=KEY, max_retries=0) as connected:
        yield connected
