"""The SQLAlchemy engine, for administration, look-ups and reports.

The hot path (admit, settle, the ledger's inserts, the poll for changes) uses asyncpg directly, through `pools`: an
admission takes 0.37 ms at p50 there and 1.35 ms through SQLAlchemy.

No statement is prepared by name, because behind a pooler in transaction mode the next one may meet another server
connection. Nothing connects before it is first used, so a gateway starts while Postgres is away. The driver reads the
URL, here as in `pools`, so that `?sslmode=require` means the same to both.

Invariants: a connection leads to a server that can be written to. While a standby takes over, an address may still lead
to one that cannot: it would answer every question, refuse every write, and be kept for ever. None is used again after
so long that a firewall on the way may have forgotten it, and none of a machine that is gone holds locks for long.
"""

from functools import partial
from typing import Final
from urllib.parse import urlsplit

import asyncpg
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from shared.settings import SettingsError

SCHEMES: Final = ("postgresql", "postgres")
CONNECT_TIMEOUT_S = 3.0
COMMAND_TIMEOUT_S = 10.0
WRITABLE: Final = "read-write"  # of several hosts in a URL, the one that is
ISOLATION: Final = "read committed"  # whatever the server's default: statements lock what they need and read it then
IDLE_S: Final = 60.0  # firewalls forget after 4 minutes or more, without a word to either end

# A client that is gone without a word, with its machine or its network, leaves its transaction and locks open: for two
# hours, by the usual default of TCP.
SESSION: Final = {
    "idle_in_transaction_session_timeout": "30s",
    "tcp_keepalives_idle": "60",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}


def create(
    url: str,
    *,
    connections_max: int = 4,
    command_timeout_s: float | None = COMMAND_TIMEOUT_S,
    serves: bool = False,
) -> AsyncEngine:
    """The engine for the catalogue and reports. `serves`: for a program that runs on, without a pooler in between; a
    command may wait for whoever reads its output. Raises SettingsError for a URL that is none of Postgres.
    """
    _check(url)
    return create_async_engine(
        "postgresql+asyncpg://",
        pool_size=connections_max,
        max_overflow=0,
        pool_timeout=CONNECT_TIMEOUT_S,
        pool_pre_ping=True,
        pool_recycle=round(IDLE_S),  # of its age: none is idle for longer
        isolation_level=ISOLATION.upper(),
        connect_args={
            "async_creator_fn": partial(asyncpg.connect, url, target_session_attrs=WRITABLE),
            "timeout": CONNECT_TIMEOUT_S,
            "command_timeout": command_timeout_s,
            "statement_cache_size": 0,
            "prepared_statement_cache_size": 0,
            "prepared_statement_name_func": lambda: "",
            "server_settings": {"application_name": "forebay", **(SESSION if serves else {})},
        },
    )


def _check(url: str) -> None:
    """Check the URL. The error quotes nothing of it, since it may hold a password."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        known = parts.scheme in SCHEMES and all(urlsplit(f"//{host}").port != 0 for host in hosts)
    except ValueError:
        known = False
    if not known:
        form = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, where there may be several HOST:PORT with commas between"
        raise SettingsError(f"FOREBAY_POSTGRES_URL is not of the form {form}")
