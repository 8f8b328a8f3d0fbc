"""Background tasks with one owner: none outlives its `async with`, and no failure goes unnoticed.

For tasks that start and end while their owner lives. Where a failure should end the owner, use `asyncio.TaskGroup`.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, Self

from shared import log

STOP_REPEAT_S = 0.2
KEEP_RETRY_S = 1.0

logger = log.get("tasks")


async def keep(work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run `work`, which never ends by itself, and restart it whenever it fails unexpectedly. Otherwise its owner would
    go on without it unnoticed.
    """
    while True:
        try:
            await work()
        except Exception:
            logger.exception("task.begun_anew", task=name)
        await asyncio.sleep(KEEP_RETRY_S)


async def stop(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended. Repeats the cancellation, because one can get lost:
    `asyncio.wait_for` of Python 3.11 drops one that comes just as its inner future is done, and nats-py uses it
    everywhere.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=STOP_REPEAT_S)


class Tasks:
    """`failed` names the first task that ended with an exception, so that its owner can report itself unhealthy."""

    def __init__(self, owner: str) -> None:
        self._log = log.get(owner)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failed: str | None = None

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, **concerns: str | None) -> asyncio.Task[Any]:
        """`concerns` is logged with a failure."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, concerns=concerns))
        return task

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop(list(self._tasks))

    def _done(self, task: asyncio.Task[Any], *, concerns: dict[str, str | None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.failed = self.failed or task.get_name()
            self._log.error("task.failed", task=task.get_name(), **concerns, exc_info=task.exception())
