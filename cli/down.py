"""`forebay down`: stop what `forebay up` started on a data directory."""

import os
import time
from pathlib import Path

from cli.embedded import orphans, state
from cli.embedded.directory import DataDirectory
from cli.embedded.settings import environment, from_environment
from cli.embedded.terminal import Terminal
from cli.errors import ChildFailed, NothingRunning

POLL_S = 0.05
MARGIN_S = 60.0  # beyond the drain time: servers write their last checkpoint


def down(*, data_dir: Path | None = None) -> None:
    """Stop the stack as Ctrl-C would, or what is left of one whose supervisor was killed.

    Parameters
    ----------
    data_dir
        The data directory of `forebay up`. [default: .forebay]
    """
    settings = from_environment(environment(os.environ, {"data_dir": data_dir}))
    directory = DataDirectory(settings.data_path)
    terminal = Terminal()
    present = state.load(directory.state_file)
    supervisor = present.supervisor.find() if present is not None else None
    if present is None or (supervisor is None and not orphans.alive(present)):
        raise NothingRunning(f"nothing is running on {directory.root}")
    if supervisor is None:
        with directory.lock():
            orphans.stop(present, terminal.say)
            directory.state_file.unlink(missing_ok=True)
    else:
        supervisor.terminate()
        with terminal.spinner("stopping"):
            _wait_until_free(directory, settings.drain_s + MARGIN_S)
    terminal.say("stopped")


def _wait_until_free(directory: DataDirectory, seconds_max: float) -> None:
    deadline = time.monotonic() + seconds_max
    while directory.is_locked():
        if time.monotonic() > deadline:
            raise ChildFailed(f"still stopping after {seconds_max:.0f} s: see {directory.logs}")
        time.sleep(POLL_S)
