"""`forebay doctor`: checks that this machine has what is needed, before anything is started."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from cli.embedded import nats, postgres, stack
from cli.embedded.directory import DataDirectory
from cli.embedded.settings import UpSettings, environment, from_environment
from cli.errors import CommandError

DISK_BYTES_MIN = 2 * 1024**3
MEMORY_BYTES_MIN = 3 * 1024**3
PYTHONS = ((3, 11), (3, 14))  # from, below
PROGRAM_SECONDS_MAX = 20


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    good: bool
    detail: str


def doctor(*, data_dir: Path | None = None) -> None:
    """Check Python, packages, servers, model, memory, disk and ports; exit status 1 when something is wrong.

    Parameters
    ----------
    data_dir
        The data directory that `forebay up` would use. [default: .forebay]
    """
    settings = from_environment(environment(os.environ, {"data_dir": data_dir}))
    table = Table(box=None, show_header=False)
    findings = list(_findings(settings))
    for finding in findings:
        table.add_row(finding.what, "ok" if finding.good else "PROBLEM", finding.detail)
    Console(soft_wrap=True, highlight=False, markup=False).print(table)
    if not all(finding.good for finding in findings):
        sys.exit(1)


def _findings(settings: UpSettings) -> Iterator[Finding]:
    yield Finding("python", PYTHONS[0] <= sys.version_info[:2] < PYTHONS[1], platform.python_version())
    for extra, package in (("gateway", "litestar"), ("worker", "torch"), ("worker", "tokenizers")):
        yield _package(package, extra)
    yield _checked("postgres", lambda: _program_version(str(postgres.programs() / "postgres")))
    yield _checked("nats-server", lambda: _program_version(nats.program()))
    yield _model()
    available = psutil.virtual_memory().available
    yield Finding("memory", available >= MEMORY_BYTES_MIN, f"{available / 1024**3:.1f} GiB available")
    directory = DataDirectory(settings.data_path)
    free = shutil.disk_usage(next(path for path in directory.root.parents if path.exists())).free
    yield Finding("disk", free >= DISK_BYTES_MIN, f"{free / 1024**3:.1f} GiB free for {directory.root}")
    if directory.is_locked():
        yield Finding("ports", good=True, detail=f"not checked: already running on {directory.root}")
    else:
        yield _checked("ports", lambda: _ports(settings))


def _package(package: str, extra: str) -> Finding:
    try:
        return Finding(package, good=True, detail=version(package))
    except PackageNotFoundError:
        return Finding(package, good=False, detail=f"not installed: `make up` does it, or pip with the extra {extra}")


def _checked(what: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(what, good=True, detail=check())
    except (CommandError, OSError, subprocess.SubprocessError) as error:
        return Finding(what, good=False, detail=str(error))


def _program_version(program: str) -> str:
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX, check=True
    )
    return done.stdout.strip()


def _ports(settings: UpSettings) -> str:
    stack.check_ports(settings)
    return ", ".join(str(port) for port, _, _ in stack.claims(settings))


def _model() -> Finding:
    if find_spec("gguf") is None:
        return Finding("demo model", good=False, detail="no gguf: `make up` installs it, or pip with the extra worker")
    from worker.models.card import demo_model_path
    from worker.models.errors import ModelFileError

    try:
        path = demo_model_path()
    except ModelFileError as error:
        return Finding("demo model", good=False, detail=str(error))
    return Finding("demo model", good=True, detail=f"{path.name}, {path.stat().st_size / 1024**2:.0f} MiB")
