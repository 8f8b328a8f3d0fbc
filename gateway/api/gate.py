"""The gate: how many requests this process serves at one time, and whether it accepts new ones.

Knows nothing of what a request is. A request holds one place from the moment when its key is verified until nothing is
computed for it any more, so a drain that waits for all places cuts off nobody's work.
"""

import asyncio

from gateway.errors import Unavailable

RETRY_AFTER_MS = 1_000


class Gate:
    def __init__(self, places_max: int, *, closed: bool = False) -> None:
        self._places_max = places_max
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

    async def drain(self, seconds: float) -> bool:
        """Close the gate and wait until all places are free. False if that took longer than `seconds`."""
        self.closed = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
