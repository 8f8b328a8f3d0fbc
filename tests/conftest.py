import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator

import hypothesis
import pytest
import structlog

from tests import services
from worker.models import threads


def pytest_configure() -> None:
    """Plain tracebacks: where rich is installed, structlog draws each with all its locals, which takes seconds on a
    busy machine. Code is compiled with the optimisation of a worker, which takes a quarter less time than the default.
    Compute threads sleep while they wait, as a worker's do: tests share the cores among themselves, and a thread that
    spins takes the core that it waits for. No example of a property is timed, and drawing none: a busy machine would
    make it fail. The examples are the same each time, so that a change is judged by what it changed;
    HYPOTHESIS_PROFILE=search draws others.
    """
    untimed = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
    hypothesis.settings.register_profile("same", derandomize=True, **untimed)
    hypothesis.settings.register_profile("search", **untimed)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
    os.environ.setdefault(threads.OPTIMISATION, threads.ENOUGH)
    os.environ.setdefault(threads.WAIT_POLICY, threads.PASSIVE)
    os.environ.setdefault(threads.SPIN, threads.SPIN_TURNS)
    *processors, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*processors, renderer])


@pytest.fixture(autouse=True)
def log_of_the_tests() -> Iterator[None]:
    """Restores the log's configuration: a program that a test runs in this process configures it, for a stream that is
    closed after the test.
    """
    configuration = structlog.get_config()
    yield
    structlog.configure(**configuration)
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def nats_server() -> Iterator[services.NatsServer]:
    """A nats-server for one test, which may stop, kill and empty it."""
    with services.nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """One Postgres for the whole run."""
    with services.postgres_server() as url:
        yield url


@pytest.fixture(scope="session")
def template_database(postgres_url: str) -> str:
    """A migrated database that each test clones."""
    import asyncpg

    from gateway.db.migrate import upgrade

    async def create() -> None:
        connection = await asyncpg.connect(postgres_url)
        try:
            await connection.execute("CREATE DATABASE forebay_template")
        finally:
            await connection.close()

    asyncio.run(create())
    asyncio.run(upgrade(services.database_url(postgres_url, "forebay_template")))
    return "forebay_template"


@pytest.fixture
async def database_url(postgres_url: str, template_database: str) -> AsyncIterator[str]:
    """The URL of a fresh, migrated database."""
    import asyncpg

    name = f"test_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE {template_database}')
        yield services.database_url(postgres_url, name)
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()
