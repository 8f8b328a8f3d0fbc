"""Whether the usage stream still has room for bills.

While Postgres is away, usage waits in a bounded JetStream stream, which refuses new events when it is full. Long before
that, new requests are refused: work that could not be billed is not started.
"""

import asyncio
from typing import Final

from shared import log, subjects
from shared.bus import Bus, BusUnavailable
from shared.jobs import stream_info

FULL_ABOVE: Final = 0.8


class UsageBacklog:
    """`full` is the result of the last check; before the first one, the stream is assumed to have room."""

    def __init__(self, bus: Bus, check_s: float) -> None:
        self._bus = bus
        self._check_s = check_s
        self._log = log.get("dispatch")
        self.full = False

    async def watch(self) -> None:
        """Look at the stream now and then, until cancelled."""
        while True:
            try:
                info = await stream_info(self._bus, subjects.USAGE_STREAM)
            except BusUnavailable:
                pass  # requests are refused anyway while the bus is away
            else:
                full = info.config.max_bytes > 0 and info.state.bytes > FULL_ABOVE * info.config.max_bytes
                if full != self.full:
                    self._log.error("usage.backlog", full=full, bytes=info.state.bytes)
                self.full = full
            await asyncio.sleep(self._check_s)
