"""The embedded nats-server: its configuration with one user per role, and its command line.

It knows no subject: what a role may do is `shared.subjects.permissions`. The configuration is written as JSON, which
nats-server reads too, so that any path and password is quoted right.
"""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Any, get_args

import msgspec

from cli.embedded.child import Child
from cli.embedded.directory import DataDirectory, Secrets, write_private
from cli.embedded.ports import LOOPBACK
from cli.errors import CommandError
from shared import subjects

ROLES: tuple[subjects.Role, ...] = get_args(subjects.Role)
PAYLOAD_BYTES_MAX = 8 * 1024 * 1024
MEMORY_BYTES_MAX = 1024 * 1024 * 1024
FILE_BYTES_MAX = 4 * 1024 * 1024 * 1024
READY_SECONDS_MAX = 30.0


def program() -> str:
    """The nats-server beside this Python, or on PATH. Raises CommandError when there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise CommandError("nats-server is not installed: run `make up`, or set FOREBAY_NATS_URL")
    return found


def configuration(store: Path, passwords: dict[str, str], *, port: int, host: str = LOOPBACK) -> dict[str, Any]:
    """`passwords` by role."""
    return {
        "host": host,
        "port": port,
        "max_payload": PAYLOAD_BYTES_MAX,
        "jetstream": {
            "store_dir": str(store),
            "max_memory_store": MEMORY_BYTES_MAX,
            "max_file_store": FILE_BYTES_MAX,
        },
        "authorization": {
            "users": [{"user": role, "password": passwords[role], "permissions": permissions(role)} for role in ROLES]
        },
    }


def permissions(role: subjects.Role) -> dict[str, tuple[str, ...]]:
    allowed = subjects.permissions(role)
    return {"publish": allowed.publish, "subscribe": allowed.subscribe}


def threads(cores: int) -> int:
    """That it computes on. With as many as cores, as Go has it, each message wakes some that find nothing to do."""
    return max(1, cores // 2)


def child(directory: DataDirectory, port: int, secrets: Secrets) -> Child:
    """Write the configuration; the server as a child of the supervisor."""
    file = directory.nats / "nats-server.json"
    values = configuration(directory.nats, secrets.nats, port=port)
    write_private(file, msgspec.json.format(msgspec.json.encode(values)))
    return Child(
        name="nats",
        argv=[program(), "--config", str(file)],
        env={"GOMAXPROCS": str(threads(os.cpu_count() or 1))},
        log=directory.logs / "nats.log",
        address=f"{LOOPBACK}:{port}",
    )


def url(role: str, secrets: Secrets, port: int) -> str:
    return f"nats://{role}:{secrets.nats[role]}@{LOOPBACK}:{port}"
