"""Noticing that a client has hung up while its request is served.

Once the body has been read, `receive()` stays pending until the connection closes. One call of it waits for as long as
the request lives; when it returns, the task that serves the client is cancelled, wherever it is.
"""

import asyncio
from typing import Any

from litestar.types import Receive


class Hangup:
    """Watches for the current task, from when the body has been read until `stop`."""

    def __init__(self, receive: Receive) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancels_before = task.cancelling()
        self._receive = receive
        self._happened = False
        self._watch()

    def cut_off(self) -> None:
        """Behave as if the client had hung up."""
        if not self._happened:
            self._happened = True
            self._task.cancel()

    def explains_cancel(self) -> bool:
        """Whether the CancelledError that was just caught was caused by a hang-up alone. If so, the cancellation is
        undone.
        """
        return self._happened and self._task.uncancel() <= self._cancels_before

    def stop(self) -> None:
        self._message.remove_done_callback(self._on_message)
        self._message.cancel()

    def _watch(self) -> None:
        self._message: asyncio.Future[Any] = asyncio.ensure_future(self._receive())
        self._message.add_done_callback(self._on_message)

    def _on_message(self, message: "asyncio.Future[Any]") -> None:
        if message.cancelled() or message.exception() is not None or message.result()["type"] == "http.disconnect":
            self.cut_off()
        else:
            self._watch()
