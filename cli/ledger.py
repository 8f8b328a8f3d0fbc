"""`forebay ledger`: one ledger by itself, for fleets whose gateways run without one."""

import asyncio
import contextlib
import os
import signal

import asyncpg
import cyclopts
import msgspec
from sqlalchemy.exc import SQLAlchemyError

from cli.database import reason
from cli.errors import CommandError
from gateway.db import migrate, pools
from gateway.ledger.consumer import Ledger
from shared import ids, log
from shared.bus import Bus
from shared.settings import Secret, load

app = cyclopts.App(name="ledger", help="Run a ledger alone: usage from NATS into Postgres.")

CONNECTIONS_MAX = 2


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    postgres_url: Secret
    nats_url: Secret
    postgres_pooler: bool = False  # the URL leads to a pooler in transaction mode
    log_level: log.Level = "info"


@app.default
def ledger() -> None:
    """Move usage events from FOREBAY_NATS_URL into FOREBAY_POSTGRES_URL until stopped. Any number may run."""
    settings = load(LedgerSettings, os.environ)
    name = ids.process_id("ledger")
    log.configure(level=settings.log_level, service="ledger", ledger=name)
    try:
        asyncio.run(_serve(settings, name))
    except migrate.SchemaError as error:
        raise CommandError(str(error)) from error
    except (SQLAlchemyError, *pools.AWAY) as error:
        raise CommandError(f"Postgres cannot be asked: {reason(error)}") from error


def connections(settings: LedgerSettings) -> asyncpg.Pool:
    url = settings.postgres_url.reveal()
    return pools.create(url, connections_max=CONNECTIONS_MAX, pooler=settings.postgres_pooler)


async def _serve(settings: LedgerSettings, name: str) -> None:
    await migrate.check(settings.postgres_url.reveal())
    loop = asyncio.get_running_loop()
    async with (
        connections(settings) as pool,
        Bus(settings.nats_url.reveal(), name=name, role="ledger") as bus,
    ):
        running = asyncio.create_task(Ledger(bus, pool).run())
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running
