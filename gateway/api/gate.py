"""The gate: how many requests this process serves at one time, and whether it accepts new ones.

Knows nothing of what a request is. A request holds one place from the moment when its key is verified until nothing is
computed for it any more, so a drain that waits for all places cuts off nobody's work. While a body is read, no limit of
its tenant has been asked yet, so one tenant may hold only a share of all places with such requests.
"""

import asyncio
from typing import Final

from gateway.errors import QueueFull, Unavailable

RETRY_AFTER_MS: Final = 1_000
UNREAD_SHARE: Final = 8  # one part in so many of all places, for the requests of one tenant whose bodies are being read


class Gate:
    def __init__(self, places_max: int, *, closed: bool = False) -> None:
        self._places_max = places_max
        self._unread_max = max(places_max // UNREAD_SHARE, 1)
        self._unread: dict[str, int] = {}  # by tenant; one that has none is not in it
        self._taken = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.closed = closed

    @property
    def taken(self) -> int:
        return self._taken

    def enter(self, *, beyond: int = 0) -> None:
        """Take a place until `leave`; `beyond` allows so many places more than the limit. Raises Unavailable when there
        is none, or when the gate is closed.
        """
        if self.closed:
            raise Unavailable("This gateway takes no requests at the moment.", retry_after_ms=RETRY_AFTER_MS)
        if self._taken >= self._places_max + beyond:
            raise Unavailable("Too many requests are open on this gateway.", retry_after_ms=RETRY_AFTER_MS)
        self._taken += 1
        self._idle.clear()

    def leave(self) -> None:
        self._taken -= 1
        if self._taken == 0:
            self._idle.set()

    def start_reading(self, tenant: str) -> None:
        """Count a request, which has a place, until `stop_reading`. Raises QueueFull; then it is not counted."""
        unread = self._unread.get(tenant, 0)
        if unread >= self._unread_max:
            message = "Too many of your requests have not sent their bodies yet."
            raise QueueFull(message, retry_after_ms=RETRY_AFTER_MS)
        self._unread[tenant] = unread + 1

    def stop_reading(self, tenant: str) -> None:
        unread = self._unread[tenant] - 1
        if unread:
            self._unread[tenant] = unread
        else:
            del self._unread[tenant]

    async def drain(self, seconds: float) -> bool:
        """Close the gate and wait until all places are free. False if that took longer than `seconds`."""
        self.closed = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
