"""One process of the stack: started in its own session, with its output in a log file; stopped by a signal, then
killed.

Knows nothing of what the process does. Invariant: after `stop` or `kill` no process of the child's group is alive.
"""

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli.embedded.state import ProcessMark, Service
from cli.errors import ChildFailed

LOG_BYTES_MAX = 16 * 1024 * 1024  # then the file is copied to NAME.log.1 and emptied
TAIL_LINES = 5
TAIL_BYTES = 8192
KILL_WAIT_S = 5.0


@dataclass(slots=True, kw_only=True)
class Child:
    """How to run one process, and the process itself while it runs."""

    name: str
    argv: list[str]
    env: Mapping[str, str]
    log: Path
    address: str
    health: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    grace_s: float = 10.0
    account: pwd.struct_passwd | None = None  # run as this user instead of ours
    restarts: int = 0
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    mark: ProcessMark | None = field(default=None, init=False)

    async def start(self) -> None:
        assert self.process is None or self.process.returncode is not None, self.name
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.argv,
                env=dict(self.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor alone
                user=self.account.pw_uid if self.account else None,
                group=self.account.pw_gid if self.account else None,
                extra_groups=[] if self.account else None,
            )
        self.mark = ProcessMark.of(self.process.pid)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    async def wait(self) -> str:
        """Wait for the end and say how it ended."""
        assert self.process is not None, self.name
        code = await self.process.wait()
        return f"ended with status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"

    async def stop(self) -> None:
        """Send the stop signal, wait `grace_s`, then kill. Does nothing when it has ended."""
        if self.process is None or not self.running:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(self.stop_signal)
        try:
            await asyncio.wait_for(self.process.wait(), self.grace_s)
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.wait_for(self.process.wait(), KILL_WAIT_S)

    def tail(self) -> str:
        """The last lines of the log, indented, for a message on the terminal."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        return "\n".join(f"    {line[:500]}" for line in lines[-TAIL_LINES:])

    def failed(self, what: str) -> ChildFailed:
        return ChildFailed(f"{self.name} {what}; the end of {self.log}:\n{self.tail()}")

    def rotate_log(self) -> None:
        """Keep the log bounded. The child appends, so emptying the file under it is safe."""
        if self.log.stat().st_size > LOG_BYTES_MAX:
            shutil.copyfile(self.log, self.log.with_name(self.log.name + ".1"))
            os.truncate(self.log, 0)

    def service(self) -> Service:
        assert self.mark is not None, self.name
        return Service(
            name=self.name,
            mark=self.mark,
            address=self.address,
            health=self.health,
            log=str(self.log),
            stop_signal=int(self.stop_signal),
            restarts=self.restarts,
        )
