"""The state file in which `up` records its processes, so that `status`, `down` and the next `up` can find them.

A process is identified by its id and its start time: an id alone may have been reused.
"""

from pathlib import Path
from typing import Literal

import msgspec
import psutil

from cli.embedded.directory import write_private

Phase = Literal["starting", "ready", "stopping"]

START_TOLERANCE_S = 1.0


class ProcessMark(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    started_s: float  # Unix time

    @classmethod
    def of(cls, pid: int) -> "ProcessMark":
        try:
            return cls(pid=pid, started_s=psutil.Process(pid).create_time())
        except psutil.NoSuchProcess:  # it ended at once; nobody has to find it
            return cls(pid=pid, started_s=0.0)

    def find(self) -> psutil.Process | None:
        """The process itself, if it still lives."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_s) < START_TOLERANCE_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the stack, in start order."""

    name: str  # postgres, nats, gateway-0, worker-0
    mark: ProcessMark
    address: str  # host:port, or a URL, for people to read
    health: str | None  # the readiness URL, if it has one
    log: str
    stop_signal: int
    restarts: int = 0


class State(msgspec.Struct, frozen=True, kw_only=True):
    supervisor: ProcessMark
    phase: Phase
    services: tuple[Service, ...] = ()


def save(path: Path, state: State) -> None:
    write_private(path, msgspec.json.encode(state))


def load(path: Path) -> State | None:
    """The last state written, or None when there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
        return None
