"""A whole stack for a measurement: `forebay up --detach` on free ports in a directory of its own, `forebay down` after.

Owns its processes and what the operating system says of them. Invariant: what the caller's shell has set for Forebay
does not reach it, so a recorded result depends on nothing that is not recorded.
"""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.errors import BenchError
from cli.embedded import demo, ports, stack, state
from cli.embedded.directory import DataDirectory

UP_SECONDS_MAX = 300
DOWN_SECONDS_MAX = 120
GATEWAY, WORKER = "gateway-0", "worker-0"


@dataclass(frozen=True, slots=True)
class Stack:
    """One gateway and one worker, ready."""

    processes: dict[str, psutil.Process]
    environ: dict[str, str]  # demo.env
    up_s: float  # from the command to ready
    ready_s: float  # from the start of the worker's process to ready

    @property
    def base_url(self) -> str:
        return self.environ["OPENAI_BASE_URL"]

    @property
    def key(self) -> str:
        return self.environ["OPENAI_API_KEY"]

    @property
    def postgres_url(self) -> str:
        return self.environ["FOREBAY_POSTGRES_URL"]

    def cpu_s(self, name: str) -> float:
        """What the process has computed since it started, all of its threads, user and system."""
        return _cpu_s(self.processes[name])

    def cpu_by_process_s(self) -> dict[str, float]:
        """The same of all, each with its children that live: Postgres has one for each connection."""
        return {name: sum(map(_cpu_s, _family(process))) for name, process in self.processes.items()}

    def resident_mib(self, name: str) -> float:
        return self.processes[name].memory_info().rss / 2**20


@contextlib.contextmanager
def running(*, warm: bool = False, **settings: object) -> Generator[Stack]:
    """`settings` by their names in the environment without FOREBAY_, in small letters. In an empty directory, or `warm`
    in one where it was up before, so that no database is made and no code compiled. Raises BenchError.
    """
    with tempfile.TemporaryDirectory(prefix="forebay-bench-") as folder:
        directory = DataDirectory(Path(folder) / "data")
        environ = environment(directory, settings)
        try:
            if warm:
                _forebay("up", "--detach", environ=environ, seconds_max=UP_SECONDS_MAX)
                _down(directory, environ)
            started_s = time.time()
            _forebay("up", "--detach", environ=environ, seconds_max=UP_SECONDS_MAX)
            yield _found(directory, started_s)
        finally:
            _down(directory, environ)


def environment(directory: DataDirectory, settings: Mapping[str, object]) -> dict[str, str]:
    """This process' without what it says of Forebay, and `settings` instead."""
    port, ops_port, metrics_port = _free_ports(3)
    own = {"data_dir": directory.root, "port": port, "ops_port": ops_port, "metrics_port": metrics_port, **settings}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "OPENAI_"))},
        **{f"FOREBAY_{name.upper()}": str(value) for name, value in own.items()},
    }


def _free_ports(count: int) -> list[int]:
    found: set[int] = set()
    while len(found) < count:
        found.add(ports.pick())
    return sorted(found)


def _found(directory: DataDirectory, started_s: float) -> Stack:
    present = state.load(directory.state_file)
    assert present is not None
    processes = {service.name: psutil.Process(service.mark.pid) for service in present.services}
    ready_at_s = directory.state_file.stat().st_mtime  # written when everything is ready
    return Stack(
        processes=processes,
        environ=demo.read(directory),
        up_s=ready_at_s - started_s,
        ready_s=ready_at_s - processes[WORKER].create_time(),
    )


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return times.user + times.system


def _down(directory: DataDirectory, environ: dict[str, str]) -> None:
    present = state.load(directory.state_file)
    if present is not None and present.supervisor.find() is not None:
        _forebay("down", environ=environ, seconds_max=DOWN_SECONDS_MAX)


def _forebay(command: str, *options: str, environ: dict[str, str], seconds_max: float) -> None:
    try:
        done = subprocess.run(
            [*stack.command(command), *options],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"`forebay {command}` did not end within {seconds_max} s") from error
    if done.returncode != 0:
        raise BenchError(f"`forebay {command}` failed:\n{done.stdout}{done.stderr}")
