"""The supervisor with small programs in place of servers: order, crashes, signals, leftovers."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.embedded import orphans, state
from cli.embedded.child import LOG_BYTES_MAX, Child
from cli.embedded.directory import DataDirectory
from cli.embedded.supervisor import Supervisor
from cli.errors import ChildFailed

SLEEPER = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
)
NOTES_END = """
import signal, sys, time
def end(*_):
    with open({path!r}, 'a') as file: file.write({name!r} + ' ')
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print('up', flush=True)
time.sleep(600)
"""


class Lines:
    """A terminal that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def waiting(self, text: str) -> None: ...


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    made = DataDirectory(tmp_path)
    made.prepare()
    return made


def child(directory: DataDirectory, name: str, program: str, grace_s: float = 10) -> Child:
    argv = [sys.executable, "-c", program]
    return Child(name=name, argv=argv, env=os.environ, log=directory.logs / name, address="", grace_s=grace_s)


async def logged(one: Child, text: str) -> None:
    async with asyncio.timeout(60):
        while text not in one.log.read_text():
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_stages_end_in_reverse_order_on_a_signal(directory: DataDirectory, tmp_path: Path) -> None:
    notes = tmp_path / "ends"
    children = [child(directory, name, NOTES_END.format(path=str(notes), name=name)) for name in ("a", "b", "c")]

    async def start(supervisor: Supervisor) -> None:
        for one in children:
            await supervisor.start([one])
            await supervisor.until(one, logged(one, "up"))
        asyncio.get_running_loop().call_later(0.1, interrupt)

    await asyncio.wait_for(Supervisor(directory, Lines()).run(start), 120)
    assert notes.read_text().split() == ["c", "b", "a"]
    assert not directory.state_file.exists()


async def test_a_child_that_ends_while_starting_is_reported_with_its_last_words(directory: DataDirectory) -> None:
    good = child(directory, "good", SLEEPER)
    bad = child(directory, "bad", "import sys; sys.exit('tensor blk.3 is missing')")

    async def start(supervisor: Supervisor) -> None:
        await supervisor.start([good, bad])
        await supervisor.until(bad, asyncio.sleep(60))

    with pytest.raises(ChildFailed, match=r"(?s)bad ended with status 1.*tensor blk.3 is missing"):
        await asyncio.wait_for(Supervisor(directory, Lines()).run(start), 120)
    assert not good.running


async def test_one_that_never_gets_ready_is_reported(directory: DataDirectory) -> None:
    slow = child(directory, "slow", SLEEPER)

    async def never() -> None:
        raise TimeoutError

    async def start(supervisor: Supervisor) -> None:
        await supervisor.start([slow])
        await supervisor.until(slow, never())

    with pytest.raises(ChildFailed, match="slow did not become ready in time"):
        await asyncio.wait_for(Supervisor(directory, Lines()).run(start), 120)
    assert not slow.running


async def test_a_child_that_is_killed_is_started_again(directory: DataDirectory) -> None:
    one = child(directory, "one", SLEEPER)
    terminal = Lines()

    async def start(supervisor: Supervisor) -> None:
        await supervisor.start([one])
        assert one.process is not None
        one.process.kill()

    running = asyncio.create_task(Supervisor(directory, terminal, restart_wait_s=0.01).run(start))
    await until(lambda: one.restarts == 1 and one.running)
    assert any("one was ended by SIGKILL" in line for line in terminal.lines)
    interrupt()
    await asyncio.wait_for(running, 120)


async def test_a_child_that_falls_again_and_again_ends_the_stack(directory: DataDirectory) -> None:
    good = child(directory, "good", SLEEPER)
    bad = child(directory, "bad", "import sys; sys.exit(3)")

    async def start(supervisor: Supervisor) -> None:
        await supervisor.start([good, bad])

    with pytest.raises(ChildFailed, match="bad ended with status 3 for the 6th time in 60 s"):
        await asyncio.wait_for(Supervisor(directory, Lines(), restart_wait_s=0.001).run(start), 120)
    assert not good.running


async def test_a_stubborn_child_is_killed_after_its_grace(directory: DataDirectory) -> None:
    deaf = child(directory, "deaf", STUBBORN, grace_s=0.2)

    async def start(supervisor: Supervisor) -> None:
        await supervisor.start([deaf])
        await supervisor.until(deaf, logged(deaf, "deaf"))
        interrupt()
        await asyncio.sleep(60)

    await asyncio.wait_for(Supervisor(directory, Lines()).run(start), 120)
    assert not deaf.running


def test_what_a_killed_supervisor_left_is_found_and_stopped(directory: DataDirectory) -> None:
    left = subprocess.Popen([sys.executable, "-c", SLEEPER])
    reaper = threading.Thread(target=left.wait)
    reaper.start()
    stranger = state.ProcessMark(pid=os.getpid(), started_s=time.time() - 10_000)  # our id, another start time
    services = [
        state.Service(name=name, mark=mark, address="", health=None, log="", stop_signal=signal.SIGTERM)
        for name, mark in (("stranger", stranger), ("left", state.ProcessMark.of(left.pid)))
    ]
    present = state.State(supervisor=stranger, phase="ready", services=tuple(services))
    state.save(directory.state_file, present)

    read = state.load(directory.state_file)
    assert read == present
    assert [service.name for service in orphans.alive(read)] == ["left"]
    orphans.stop(read, lambda _: None)
    reaper.join(60)
    assert orphans.alive(read) == []


def test_a_log_stays_bounded(directory: DataDirectory) -> None:
    one = child(directory, "one", SLEEPER)
    one.log.write_bytes(b"x" * (LOG_BYTES_MAX + 1))
    one.rotate_log()
    assert one.log.stat().st_size == 0
    assert (directory.logs / "one.1").stat().st_size == LOG_BYTES_MAX + 1
