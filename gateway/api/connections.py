"""Ends connections whose client was refused and does not finish its body.

The HTTP server has no limit for a slow body (granian's issue 728): it keeps such a connection for as long as it waits
for the rest, whatever the response says of closing it. It runs in this process, so the client's socket is among our
file descriptors. Knows no requests. Invariant: only the reading side is shut, so the response still arrives.
"""

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

DELAY_S: Final = 0.5  # in which the response goes out, and after which all that are due are ended in one look
DESCRIPTORS: Final = Path("/dev/fd")


class Connections:
    def __init__(self) -> None:
        self._due: set[tuple[str, int]] = set()

    def end_soon(self, client: tuple[str, int] | None) -> None:
        """Stop reading from this client. None, for a connection without an address, changes nothing."""
        if client is None:
            return
        if not self._due:
            asyncio.get_running_loop().call_later(DELAY_S, self._end_due)
        self._due.add((client[0], int(client[1])))  # granian gives the port as a text

    def _end_due(self) -> None:
        due, self._due = self._due, set()
        for descriptor in DESCRIPTORS.iterdir():
            with suppress(OSError):  # not connected, or closed meanwhile
                _stop_reading(int(descriptor.name), due)


def _stop_reading(descriptor: int, clients: set[tuple[str, int]]) -> None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in {socket.AF_INET, socket.AF_INET6} and connection.getpeername()[:2] in clients:
            connection.shutdown(socket.SHUT_RD)
