"""`forebay status`: what runs on a data directory."""

import os
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.embedded import health, orphans, state
from cli.embedded.directory import DataDirectory
from cli.embedded.settings import environment, from_environment
from cli.embedded.state import Service, State
from cli.errors import NothingRunning

DETAIL_CHARS_MAX = 120
WIDTH = 200  # of a pipe, which has none of its own


def status(*, data_dir: Path | None = None) -> None:
    """Show every process with its state; exit status 0 only when all of them run and are ready.

    Parameters
    ----------
    data_dir
        The data directory of `forebay up`. [default: .forebay]
    """
    directory = DataDirectory(from_environment(environment(os.environ, {"data_dir": data_dir})).data_path)
    present = state.load(directory.state_file)
    if present is None or not directory.is_locked():
        raise NothingRunning(_nothing(directory, present))
    table = Table(box=None, header_style="bold")
    for column in ("name", "state", "process", "up", "restarts", "address"):
        table.add_column(column, no_wrap=True)
    states = [(service, _state(service)) for service in present.services]
    for service, text in states:
        table.add_row(service.name, text, str(service.mark.pid), _age(service), str(service.restarts), service.address)
    console = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else WIDTH)
    well = all(text in ("running", "ready") for _, text in states)
    phase = present.phase if well or present.phase != "ready" else "not ready"
    console.print(f"{phase} on {directory.root}, logs in {directory.logs}", markup=False)
    console.print(table)
    if phase != "ready":
        sys.exit(1)


def _nothing(directory: DataDirectory, present: State | None) -> str:
    """What a killed supervisor has left still answers clients, and nobody restarts it."""
    left = ", ".join(service.name for service in orphans.alive(present)) if present is not None else ""
    if not left:
        return f"nothing is running on {directory.root}"
    return f"the `up` on {directory.root} was killed and left {left}: `forebay down` or the next `up` stops them"


def _state(service: Service) -> str:
    if service.mark.find() is None:
        return "gone"
    if service.health is None:
        return "running"
    found = health.probe(service.health)
    return "ready" if found.ready else f"not ready: {found.detail[:DETAIL_CHARS_MAX]}"


def _age(service: Service) -> str:
    seconds = max(0, int(time.time() - service.mark.started_s))
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
