"""Ends connections whose client was refused and does not finish its body.

The HTTP server has no limit for a slow body (granian's issue 728): it keeps such a connection for as long as it waits
for the rest, whatever the response says of closing it. It runs in this process, so the client's socket is among our
file descriptors. Knows no requests. Invariants: only the reading side is shut, so the response still arrives; the event
loop never waits for a look through the descriptors, of which clients without a key can open thousands.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

DELAY_S: Final = 0.5  # in which the response goes out, and after which all that are due are ended in one look
DESCRIPTORS: Final = Path("/dev/fd")

Client = tuple[str, int]


def stop_reading(clients: set[Client]) -> None:
    """One look through this process's descriptors. Not for the event loop: it takes 20 us for each."""
    for descriptor in DESCRIPTORS.iterdir():
        with suppress(OSError):  # no socket, not connected, or closed meanwhile
            _stop_reading(int(descriptor.name), clients)


class Connections:
    """`look` stops reading from clients; it runs in a thread, one at a time and at most every `delay_s`."""

    def __init__(self, look: Callable[[set[Client]], None] = stop_reading, *, delay_s: float = DELAY_S) -> None:
        self._look = look
        self._delay_s = delay_s
        self._due: set[Client] = set()
        self._ending: asyncio.Task[None] | None = None

    def end_soon(self, client: tuple[str, int] | None) -> None:
        """Stop reading from this client. None, for a connection without an address, changes nothing."""
        if client is None:
            return
        self._due.add((client[0], int(client[1])))  # granian gives the port as a text
        if self._ending is None:
            self._ending = asyncio.create_task(self._end_due())

    async def _end_due(self) -> None:
        try:
            while self._due:
                await asyncio.sleep(self._delay_s)
                due, self._due = self._due, set()
                with suppress(OSError):  # no descriptor is left to look with
                    await asyncio.to_thread(self._look, due)
        finally:
            self._ending = None


def _stop_reading(descriptor: int, clients: set[Client]) -> None:
    """The server's own threads may close the descriptor at any time, and another connection may get its number: so
    what is looked at and what is shut is a duplicate.
    """
    duplicate = os.dup(descriptor)
    try:
        connection = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        return
    with connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6} and connection.getpeername()[:2] in clients:
            connection.shutdown(socket.SHUT_RD)
