"""Starts the stack in order, watches it, restarts processes that die, and stops it in reverse order.

Knows processes and their readiness, not what they say to each other. Invariants: whatever was started is stopped before
`run` returns, however it returns; the state file names every process that may be alive.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from cli.embedded import health, orphans, state
from cli.embedded.child import Child
from cli.embedded.directory import DataDirectory
from cli.embedded.terminal import Terminal

POLL_S = 0.1
HOUSEKEEPING_S = 5.0
RESTARTS_MAX = 5  # of one child within RESTART_WINDOW_S; then the stack stops
RESTART_WINDOW_S = 60.0
RESTART_WAIT_S = 1.0  # doubled with each restart in the window; long enough for others to notice the loss
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Supervisor:
    """Owns the children. The children started in one call of `start` form a stage, and are stopped together."""

    def __init__(self, directory: DataDirectory, terminal: Terminal, *, restart_wait_s: float = RESTART_WAIT_S) -> None:
        self._restart_wait_s = restart_wait_s
        self._directory = directory
        self._terminal = terminal
        self._stages: list[list[Child]] = []
        self._phase: state.Phase = "starting"
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    # -- the life of the stack

    async def run(self, start: Callable[["Supervisor"], Awaitable[None]]) -> None:
        """Run `start`, then watch until a signal. Raises ChildFailed, or whatever `start` raises."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled)
        self._end_leftovers()
        try:
            if await self._unless_stopped(start(self)):
                self._enter("ready")
                await self._unless_stopped(self._watch())
        finally:
            self._enter("stopping")
            await self._stop_all()
            self._directory.state_file.unlink(missing_ok=True)

    async def start(self, children: Iterable[Child]) -> None:
        """Start a stage. Does not wait for readiness."""
        stage: list[Child] = []
        self._stages.append(stage)
        for child in children:
            await child.start()
            stage.append(child)
            self._save()

    async def until(self, child: Child, ready: Awaitable[None]) -> None:
        """Wait for `ready`. Raises ChildFailed if the child ends first or `ready` times out."""
        ended = asyncio.create_task(child.wait())
        waiting = asyncio.ensure_future(ready)
        try:
            await asyncio.wait((ended, waiting), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise child.failed(ended.result())
            try:
                waiting.result()
            except TimeoutError:
                raise child.failed("did not become ready in time") from None
        finally:
            ended.cancel()
            waiting.cancel()

    async def until_healthy(self, children: list[Child], seconds_max: float) -> None:
        """Wait until every child's readiness URL says yes. Raises ChildFailed."""
        details: dict[str, str] = {}

        async def healthy(child: Child) -> None:
            assert child.health is not None, child.name
            async with asyncio.timeout(seconds_max):
                while not (found := await asyncio.to_thread(health.probe, child.health)).ready:
                    details[child.name] = found.detail[:120]
                    self._terminal.waiting("; ".join(f"{name}: {text}" for name, text in details.items()))
                    await asyncio.sleep(POLL_S)
            details.pop(child.name, None)
            self._terminal.say(f"  {child.name:<12} {child.address}")

        await _all(self.until(child, healthy(child)) for child in children)

    # -- watching

    async def _watch(self) -> None:
        children = [child for stage in self._stages for child in stage]
        await _all([self._housekeeping(children), *(self._keep(child) for child in children)])

    async def _keep(self, child: Child) -> None:
        """Start `child` again whenever it ends. Raises ChildFailed when it ends too often."""
        clock = asyncio.get_running_loop().time
        falls: list[float] = []
        while True:
            how = await child.wait()
            falls = [at for at in falls if clock() - at < RESTART_WINDOW_S]
            if len(falls) >= RESTARTS_MAX:
                raise child.failed(f"{how} for the {len(falls) + 1}th time in {RESTART_WINDOW_S:.0f} s")
            self._terminal.say(f"{child.name} {how}: starting it again; the end of {child.log}:\n{child.tail()}")
            await asyncio.sleep(self._restart_wait_s * 2 ** len(falls))
            falls.append(clock())
            child.restarts += 1
            await child.start()
            self._save()

    async def _housekeeping(self, children: list[Child]) -> None:
        while True:
            await asyncio.sleep(HOUSEKEEPING_S)
            for child in children:
                child.rotate_log()

    # -- stopping

    def _signalled(self) -> None:
        if self._stop.is_set():
            self._terminal.say("stopping at once")
            self._hurry.set()
        self._stop.set()

    async def _unless_stopped(self, work: Awaitable[Any]) -> bool:
        """Whether `work` ended by itself; on a signal it is cancelled."""
        task = asyncio.ensure_future(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                return False
            task.result()
            return True
        finally:
            stopped.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _stop_all(self) -> None:
        for stage in reversed(self._stages):
            running = [child for child in stage if child.running]
            if running:
                self._terminal.say(f"stopping {', '.join(child.name for child in running)}")
            await asyncio.gather(*(self._end(child) for child in running))

    async def _end(self, child: Child) -> None:
        """Stop with grace. After a second signal, only the database servers still get their grace time."""
        stopping = asyncio.create_task(child.stop())
        hurried = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((stopping, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not stopping.done() and child.health is not None:
            await child.kill()
        await stopping

    # -- the state file

    def _end_leftovers(self) -> None:
        """Stop what a killed supervisor left running."""
        left = state.load(self._directory.state_file)
        if left is not None:
            orphans.stop(left, self._terminal.say)
        self._save()

    def _enter(self, phase: state.Phase) -> None:
        self._phase = phase
        self._save()

    def _save(self) -> None:
        services = tuple(child.service() for stage in self._stages for child in stage)
        supervisor = state.ProcessMark.of(os.getpid())
        state.save(self._directory.state_file, state.State(supervisor=supervisor, phase=self._phase, services=services))


async def _all(work: Iterable[Awaitable[None]]) -> None:
    """Await all; at the first error cancel the others and raise it as it is."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
