"""A whole stack of the test's own, started as a user starts it: `forebay up --detach` on free ports, `forebay down`."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from cli.embedded import demo, state
from cli.embedded.directory import DataDirectory
from gateway import keys
from gateway.db import catalogue, engine
from gateway.db.catalogue import Limits
from tests.services import free_port

START_SECONDS_MAX = 240
STOP_SECONDS_MAX = 120


def forebay(
    *args: str, env: dict[str, str] | None = None, seconds_max: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would, without what the caller's shell has set for it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "OPENAI_"))}
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *args],
        env={**clean, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


@dataclass
class Stack:
    """A running stack, with what its operator and its tenants know of it."""

    directory: DataDirectory
    gateways: int
    port: int
    ops_port: int
    metrics_port: int
    workers: int

    @property
    def environ(self) -> dict[str, str]:
        """demo.env, plus where the data is: what a shell has after `source`."""
        return {**demo.read(self.directory), "FOREBAY_DATA_DIR": str(self.directory.root)}

    @property
    def base_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.port + index}/v1" for index in range(self.gateways)]

    @property
    def ops_metrics_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.ops_port + 100 * index}/metrics" for index in range(self.gateways)]

    @property
    def ready_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.ops_port + 100 * index}/healthz/ready" for index in range(self.gateways)]

    @property
    def worker_metrics_urls(self) -> list[str]:
        return [f"http://127.0.0.1:{self.metrics_port + index}/metrics" for index in range(self.workers)]

    @property
    def worker_ready_urls(self) -> list[str]:
        return [url.replace("/metrics", "/healthz/ready") for url in self.worker_metrics_urls]

    @property
    def acme_key(self) -> str:
        return self.environ["OPENAI_API_KEY"]

    @property
    def hobby_key(self) -> str:
        return self.environ["FOREBAY_HOBBY_KEY"]

    @property
    def postgres_url(self) -> str:
        return self.environ["FOREBAY_POSTGRES_URL"]

    @property
    def present(self) -> state.State:
        present = state.load(self.directory.state_file)
        assert present is not None
        return present

    def service(self, name: str) -> state.Service:
        return next(service for service in self.present.services if service.name == name)

    def kill_worker(self) -> None:
        """SIGKILL, once and for all: the supervisor is suspended so that it cannot start another."""
        os.kill(self.present.supervisor.pid, signal.SIGSTOP)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.service("worker-0").mark.pid, signal.SIGKILL)

    def usage(self, request: str | None = None) -> list[dict[str, Any]]:
        """Rows of usage_events, of one request or of all."""
        where = "" if request is None else f"WHERE request_id = '{uuid.UUID(request)}'"
        return self.query(f"SELECT *, request_id::text FROM usage_events {where} ORDER BY occurred_at")

    def query(self, sql: str) -> list[dict[str, Any]]:
        async def run() -> list[dict[str, Any]]:
            connection = await asyncpg.connect(self.postgres_url)
            try:
                return [dict(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        return asyncio.run(run())

    def create_tenant(self, *, rpm: int | None, tpm: int | None, tier: int = 0) -> str:
        """A tenant with these limits and no others; its key. None is unlimited."""
        return asyncio.run(self._create_tenant(Limits(rpm=rpm, tpm=tpm), tier, revoked=False))

    def create_revoked_key(self) -> str:
        return asyncio.run(self._create_tenant(Limits(), 0, revoked=True))

    async def _create_tenant(self, limits: Limits, tier: int, *, revoked: bool) -> str:
        database = engine.create(self.postgres_url, connections_max=1)
        try:
            name = f"tenant-{uuid.uuid4().hex[:8]}"
            plan = await catalogue.plan_of_tier(database, tier)
            await catalogue.create_tenant(database, name, plan=plan, limits=limits)
            text, record = keys.generate("test")
            await catalogue.create_key(database, name, record, scopes=frozenset({"inference"}))
            if revoked:
                await catalogue.revoke_key(database, record.public_id)
            return text
        finally:
            await database.dispose()


@contextlib.contextmanager
def running(*, gateways: int = 1, workers: int = 1, env: dict[str, str] | None = None) -> Iterator[Stack]:
    """A stack with the fake engine unless `env` says otherwise (FOREBAY_RUNNER)."""
    with tempfile.TemporaryDirectory(prefix="forebay-e2e-") as folder:
        stack = Stack(
            directory=DataDirectory(Path(folder) / "data"),
            gateways=gateways,
            workers=workers,
            port=free_port(gateways),
            ops_port=free_port(gateways, 100),
            metrics_port=free_port(workers),
        )
        settings = {
            "FOREBAY_RUNNER": "fake",
            **(env or {}),
            "FOREBAY_DATA_DIR": str(stack.directory.root),
            "FOREBAY_GATEWAYS": str(gateways),
            "FOREBAY_WORKERS": str(workers),
            "FOREBAY_PORT": str(stack.port),
            "FOREBAY_OPS_PORT": str(stack.ops_port),
            "FOREBAY_METRICS_PORT": str(stack.metrics_port),
        }
        try:
            started = forebay("up", "--detach", env=settings, seconds_max=START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            forebay("down", env=settings, seconds_max=STOP_SECONDS_MAX)
            raise
        assert started.returncode == 0, started.stderr + started.stdout
        try:
            yield stack
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stack.present.supervisor.pid, signal.SIGCONT)
            stopped = forebay("down", env=settings, seconds_max=STOP_SECONDS_MAX)
            assert stopped.returncode == 0, stopped.stderr
