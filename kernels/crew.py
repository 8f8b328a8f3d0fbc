"""Helper threads that run the same compiled call as their caller, at the same time.

Owns the threads. Knows nothing of the work, which must divide itself among callers (`shared_work`) and be complete when
the caller's own call returns: a helper may wake late, or only after the work is done.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any

Job = Callable[[], None]


class Crew:
    """For one caller. Its helpers end when it is garbage-collected."""

    def __init__(self, helpers: int) -> None:
        self._posts = [_Post() for _ in range(helpers)]
        for post in self._posts:
            threading.Thread(target=post.serve, name="crew", daemon=True).start()
        weakref.finalize(self, _dismiss, self._posts)

    def call(self, work: Callable[..., None], *args: Any) -> None:
        """`work(*args)`, here and in every helper."""
        for post in self._posts:
            post.give(lambda: work(*args))
        work(*args)
        for post in self._posts:
            post.job = _nothing  # a job holds arrays as large as a step


def _nothing() -> None:
    pass


class _Post:
    """Where a helper waits for a job. A job that it has not taken in time is skipped."""

    def __init__(self) -> None:
        self.job: Job | None = _nothing
        self._idle = threading.Lock()
        self._idle.acquire()

    def give(self, job: Job | None) -> None:
        """A job, or None to end the helper."""
        self.job = job
        if self._idle.locked():
            self._idle.release()

    def serve(self) -> None:
        while True:
            self._idle.acquire()
            job = self.job
            if job is None:
                return
            job()
            del job


def _dismiss(posts: list[_Post]) -> None:
    for post in posts:
        post.give(None)
