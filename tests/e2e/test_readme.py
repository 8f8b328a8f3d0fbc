"""Every command of the README is run as it stands there; of make's targets, only the names."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.stack import Stack
from tests.services import free_port

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHELL = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

pytestmark = pytest.mark.timeout(600)


def commands() -> list[str]:
    return [line for block in SHELL for line in block.splitlines()]


def shell(
    command: str, env: dict[str, str], folder: Path, *, seconds_max: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run in a folder like a clone: `.venv/bin/forebay` and `forebay` are this environment's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "OPENAI_"))}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**clean, "PATH": path, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds_max,
        check=False,
    )


def test_it_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) <= 150


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {command.removeprefix("make ") for command in commands() if command.startswith("make ")}
    assert named
    assert named <= targets


def test_its_commands_work_on_a_running_stack(real_stack: Stack, clone: Path) -> None:
    (clone / ".forebay").symlink_to(real_stack.directory.root)
    mine = [line for line in commands() if not line.startswith(("make ", "forebay up", "forebay down"))]
    assert mine[0] == "source .forebay/demo.env"
    for command in mine[1:]:
        done = shell(f"{mine[0]} && {command}", {}, clone)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if "capital of France" in command:
            assert "Paris" in done.stdout


def test_its_program_works_on_a_running_stack(real_stack: Stack, clone: Path) -> None:
    (program,) = PYTHON
    (clone / "program.py").write_text(program)
    done = shell("python program.py", real_stack.environ, clone)
    assert done.stdout.strip() == "The capital of France is Paris.", done.stderr


def test_its_stack_in_the_background_starts_and_stops(clone: Path) -> None:
    up, down = [line for line in commands() if line.startswith(("forebay up", "forebay down"))]
    ports = {
        "FOREBAY_PORT": str(free_port(2)),
        "FOREBAY_OPS_PORT": str(free_port(2, 100)),
        "FOREBAY_METRICS_PORT": str(free_port(2)),
    }
    started = shell(up, ports, clone)
    try:
        assert started.returncode == 0, started.stderr
        assert "Forebay is ready" in started.stdout
        assert shell("forebay status", ports, clone).stdout.count("ready") >= 4
    finally:
        stopped = shell(down, ports, clone)
    assert stopped.returncode == 0, stopped.stderr
