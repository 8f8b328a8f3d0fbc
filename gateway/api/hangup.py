"""Noticing that a client has hung up while we work for it.

Litestar cancels nothing by itself for an answer that is not streamed. Once the body has been read, `receive()` stays
pending until the connection closes; one task waits for that for as long as the request lives, and cancels whoever
works for the client just then.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from typing import Self

from litestar.types import Receive

from gateway.errors import ClientGone


class Hangup:
    """Use as `async with Hangup(receive) as hangup` after the body has been read."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._wait())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()

    @contextmanager
    def cancels(self) -> Generator[None]:
        """Inside, a hang-up cancels the current task; what leaves is ClientGone. As `asyncio.timeout` does it."""
        current = asyncio.current_task()
        assert current is not None
        if self._task.done():
            raise ClientGone("The client closed the connection.")
        before, gone = current.cancelling(), False

        def cancel(_: "asyncio.Task[None]") -> None:
            nonlocal gone
            gone = True
            current.cancel()

        self._task.add_done_callback(cancel)
        try:
            yield
        except asyncio.CancelledError:
            if gone and current.uncancel() <= before:
                raise ClientGone("The client closed the connection.") from None
            raise
        finally:
            self._task.remove_done_callback(cancel)

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
