"""The real servers that tests run against: one Postgres per run, one nats-server per test.

Both come as wheels. A test's database is a clone of a migrated template (about 50 ms); a nats-server of its own
starts in about 30 ms, which is cheaper than sharing one.
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from cli.embedded import nats, ports, postgres
from cli.embedded.directory import DataDirectory

_PORT_MIN, _PORTS = 10_000, 10_000  # below those that `forebay up` chooses from by itself
assert _PORT_MIN + _PORTS <= ports.PORT_MIN
_given: set[int] = set()

# Which of how many processes the tests are spread over (pytest-xdist) this one is: each has ports of its own.
_PROCESS = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_SHARE = _PORTS // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def free_port(count: int = 1, apart: int = 1) -> int:
    """The first of `count` free ports that lie `apart`. Never one twice in a run, and never one of another process:
    whoever asked first may not listen yet, or may listen there again later.
    """
    while True:
        first = _PORT_MIN + _PROCESS * _SHARE + random.SystemRandom().randrange(_SHARE - apart * (count - 1))
        wanted = range(first, first + apart * count, apart)
        if _given.isdisjoint(wanted) and all(ports.is_free(port) for port in wanted):
            _given.update(wanted)
            return first


class NatsServer:
    """A nats-server with JetStream on a fixed free port, which can be stopped, killed and started again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        config = self.directory / "nats.conf"
        config.write_text(
            f'port: {self.port}\nhost: "127.0.0.1"\nmax_payload: 8MB\n'
            f'jetstream {{ store_dir: "{self.directory}/js", max_mem: 1G, max_file: 4G }}\n'
        )
        with (self.directory / "nats.log").open("ab") as log:
            self.process = subprocess.Popen([nats.program(), "-c", str(config)], stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.5):
                return
            time.sleep(0.005)
        raise TimeoutError((self.directory / "nats.log").read_text())

    def stop(self, *, kill: bool = False) -> None:
        if self.process is None:
            return
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(60)
        self.process = None


@contextlib.contextmanager
def nats_server() -> Iterator[NatsServer]:
    with tempfile.TemporaryDirectory(prefix="forebay-nats-") as directory:
        server = NatsServer(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """The URL of an empty cluster's `postgres` database, as superuser. Nothing in it outlives the run, so it need not
    reach the disk."""
    with tempfile.TemporaryDirectory(prefix="forebay-pg-") as folder:
        directory = DataDirectory(Path(folder))
        directory.prepare()
        secrets = directory.load_secrets(())
        postgres.ensure_cluster(directory, secrets, print)
        port = free_port()
        child = postgres.child(directory, port, "fsync=off", "synchronous_commit=off", "full_page_writes=off")
        account = postgres.account()
        with child.log.open("wb") as log:
            process = subprocess.Popen(
                child.argv,
                env=dict(child.env),
                stdout=log,
                stderr=log,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
            )
        url = postgres.url(postgres.SUPERUSER, secrets.postgres, port, "postgres")
        try:
            asyncio.run(postgres.wait_ready(url))
            yield url
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(60)


def database_url(server_url: str, name: str) -> str:
    """The same server, another database."""
    return f"{server_url.rsplit('/', 1)[0]}/{name}"
