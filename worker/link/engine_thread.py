"""The engine in a thread of its own, and the two queues between it and the event loop.

Owns the thread. Commands go in under a condition, one report per step comes out on the event loop. Invariant: only the
thread touches the engine, and it is never more than `reports_max` steps ahead of the loop.

Whoever computes in Python keeps the interpreter from the loop. A step on a device or in compiled loops lets go of it;
after one that is too short to have done so, the thread waits until its report was taken.

A failure of the engine itself (its own invariants, not a runner's error, which ends only the requests of a step) ends
the thread: `failed` carries it, and the worker stops.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from worker.engine.engine import Engine
from worker.engine.errors import EngineError
from worker.engine.request import EngineRequest
from worker.engine.results import EngineStats, RequestTotals, StepResult

SHORT_STEP_S = 0.002
HAND_OVER_S_MAX = 0.05
FULL_CHECK_EVERY = 100  # changes to idle: the full check takes 26 ms with 50,000 cached blocks


@dataclass(slots=True)
class Report:
    """What happened since the last report. `stats` are those after it."""

    stats: EngineStats
    added: list[str] = field(default_factory=list[str])
    refused: list[tuple[str, Exception]] = field(default_factory=list[tuple[str, Exception]])
    aborted: list[tuple[str, RequestTotals]] = field(default_factory=list[tuple[str, RequestTotals]])
    step: StepResult | None = None
    step_s: float = 0.0


class EngineThread:
    """Start inside a running event loop; `deliver` is called on it, in order."""

    def __init__(self, engine: Engine, deliver: Callable[[Report], None], *, reports_max: int) -> None:
        self._engine = engine
        self._deliver = deliver
        self._commands: list[EngineRequest | str] = []  # a request to add, or the id of one to abort
        self._wake = threading.Condition()
        self._stopping = False
        self._slots = threading.Semaphore(reports_max)
        self._taken = threading.Event()  # the last report
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._busy_since: float | None = None
        self._idle_changes = 0
        self.failed: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed = self._loop.create_future()
        self._thread.start()

    async def stop(self, timeout_s: float) -> bool:
        """Ends the thread after its present step. What it held is gone. False if that step takes longer."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    def add(self, request: EngineRequest) -> None:
        self._command(request)

    def abort(self, request_id: str) -> None:
        self._command(request_id)

    def step_age_s(self) -> float:
        """How long the present step has taken so far, or the engine has had work without finishing one."""
        busy_since = self._busy_since
        return 0.0 if busy_since is None else time.monotonic() - busy_since

    def _command(self, command: EngineRequest | str) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    # -- in the thread

    def _run(self) -> None:
        assert self._loop is not None
        try:
            while (commands := self._next_commands()) is not None:
                self._busy_since = time.monotonic()
                report = self._turn(commands)
                self._slots.acquire()  # released when the loop has taken the report
                self._taken.clear()
                self._loop.call_soon_threadsafe(self._hand_over, report)
                if not self._engine.has_work:
                    self._check_idle()
                    self._busy_since = None
                elif report.step_s < SHORT_STEP_S:
                    self._taken.wait(HAND_OVER_S_MAX)
        except Exception as error:  # noqa: BLE001 - the thread's outermost frame: the loop must learn of it
            self._loop.call_soon_threadsafe(self._fail, error)

    def _check_idle(self) -> None:
        self._engine.check_idle()
        if self._idle_changes % FULL_CHECK_EVERY == 0:
            self._engine.check_integrity()
        self._idle_changes += 1

    def _next_commands(self) -> list[EngineRequest | str] | None:
        with self._wake:
            while not (self._commands or self._engine.has_work or self._stopping):
                self._wake.wait()
            if self._stopping:
                return None
            commands, self._commands = self._commands, []
            return commands

    def _turn(self, commands: list[EngineRequest | str]) -> Report:
        added: list[str] = []
        refused: list[tuple[str, Exception]] = []
        aborted: list[tuple[str, RequestTotals]] = []
        for command in commands:
            if isinstance(command, str):
                totals = self._engine.abort(command)
                if totals is not None:
                    aborted.append((command, totals))
                continue
            try:
                self._engine.add(command)
                added.append(command.id)
            except EngineError as error:
                refused.append((command.id, error))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a request is its own fault
                self._engine.abort(command.id)
                refused.append((command.id, error))
        started = time.perf_counter()
        step = self._engine.step() if self._engine.has_work else None
        step_s = time.perf_counter() - started
        if step is not None:
            self._engine.record_time(step, step_s)
        return Report(self._engine.stats(), added, refused, aborted, step, step_s)

    # -- on the loop

    def _hand_over(self, report: Report) -> None:
        self._slots.release()
        self._deliver(report)
        self._taken.set()

    def _fail(self, error: Exception) -> None:
        assert self.failed is not None
        if not self.failed.done():
            self.failed.set_exception(error)
