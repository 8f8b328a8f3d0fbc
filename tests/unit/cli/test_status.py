"""`forebay status` where no supervisor runs any more."""

import subprocess
import sys
from pathlib import Path

import pytest

from cli.embedded import state
from cli.embedded.directory import DataDirectory
from cli.embedded.state import ProcessMark, Service, State
from cli.errors import NothingRunning
from cli.status import status


def test_what_a_killed_supervisor_left_is_named_while_it_runs(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    left = Service(
        name="gateway-0",
        mark=ProcessMark.of(sleeper.pid),
        address="a",
        health=None,
        log="gateway-0.log",
        stop_signal=15,
    )
    killed = ProcessMark(pid=sleeper.pid, started_s=0.0)
    state.save(tmp_path / "state.json", State(supervisor=killed, phase="ready", services=(left,)))
    with pytest.raises(NothingRunning, match=r"was killed and left gateway-0: `forebay down`"):
        status(data_dir=tmp_path)
    sleeper.communicate(b"\n", timeout=30)
    with pytest.raises(NothingRunning, match="nothing is running"):
        status(data_dir=tmp_path)


def test_a_stack_with_a_part_down_is_not_called_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = Service(
        name="worker-0", mark=ProcessMark(pid=1, started_s=0.0), address="a", health=None, log="x", stop_signal=15
    )
    directory = DataDirectory(tmp_path)
    state.save(
        directory.state_file, State(supervisor=ProcessMark(pid=1, started_s=0.0), phase="ready", services=(gone,))
    )
    with directory.lock(), pytest.raises(SystemExit) as ended:
        status(data_dir=tmp_path)
    assert ended.value.code == 1
    shown = capsys.readouterr().out
    assert shown.startswith("not ready on")
    assert "gone" in shown
