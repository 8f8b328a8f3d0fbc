"""What goes out to the gateways: everything of one step for one gateway in one frame.

Owns the order: whatever is added for a gateway (chunks, ends, rolls) is published in that order, over one subject.

Core NATS drops what is on its way when a connection breaks, and what is sent to a gateway that has not yet reconnected.
So nothing is published while the bus is not ready. After an outage each gateway gets nothing until it is heard, and
then first, once more, what was sent shortly before the cut: it drops what it has. What does not fit in memory is lost
too; the hole in `seq` tells the gateway which attempts that ends.
"""

import asyncio
from collections import deque
from typing import Final

from shared import log, subjects, wire
from shared.bus import Bus, BusTooLarge, BusUnavailable
from shared.clock import Clock
from worker.link.limits import LinkLimits

Item = wire.Accepted | wire.Chunk | wire.End | wire.Roll

RECENT_S: Final = 1.0  # a cut is noticed much sooner, unless no packet says so


class Outbox:
    def __init__(self, bus: Bus, worker: str, limits: LinkLimits, clock: Clock) -> None:
        self._bus = bus
        self._worker = worker
        self._limits = limits
        self._clock = clock
        self._pending: dict[str, list[Item]] = {}
        self._pending_count = 0
        self._recent: deque[tuple[float, str, list[Item]]] = deque()  # (sent at, gateway, items)
        self._cut_off: set[str] = set()  # gateways not heard since the last outage
        self._changed = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._log = log.get("outbox")
        self.frames_total = 0
        self.dropped_total = 0

    def add(self, gateway: str, item: Item) -> None:
        """Goes out with the next turn of `run`, which is after the callback that calls this: one frame per step."""
        if self._pending_count >= self._limits.outbox_items_max:
            self._drop(gateway, 1, "the outbox is full")
            return
        self._pending.setdefault(gateway, []).append(item)
        self._pending_count += 1
        self._emptied.clear()
        self._changed.set()

    async def run(self) -> None:
        """For ever: publish what was added."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._bus.ready:
                await asyncio.sleep(self._limits.beat_s)
                self._changed.set()
                continue
            for gateway in [gateway for gateway in self._pending if gateway not in self._cut_off]:
                items = self._pending.pop(gateway)
                self._pending_count -= len(items)
                await self._publish(gateway, items)
            if not self._pending:
                self._emptied.set()

    async def flush(self) -> None:
        """Wait until everything added so far has been handed to NATS."""
        await self._emptied.wait()

    async def reconnected(self) -> None:
        """An ensure hook for the bus."""
        cut_at = self._clock.monotonic() - self._bus.down_s()
        while self._recent and self._recent[0][0] < cut_at - RECENT_S:
            self._recent.popleft()
        self._cut_off = {*self._pending, *(gateway for _, gateway, _ in self._recent)}

    def heard(self, gateway: str) -> None:
        """The gateway listens (again)."""
        if gateway not in self._cut_off:
            return
        self._cut_off.discard(gateway)
        again = [item for _, name, items in self._recent if name == gateway for item in items]
        # A roll is true only where it stood among the other items.
        again = [item for item in again if not isinstance(item, wire.Roll)]
        self._pending[gateway] = again + self._pending.get(gateway, [])
        self._pending_count += len(again)
        self._changed.set()

    def forget(self, gateway: str) -> None:
        """It is gone for good."""
        self._pending_count -= len(self._pending.pop(gateway, []))
        self._cut_off.discard(gateway)
        self._changed.set()

    async def _publish(self, gateway: str, items: list[Item]) -> None:
        data = wire.encode(wire.Frame(worker=self._worker, items=tuple(items)))
        if len(data) > self._limits.frame_bytes_max and len(items) > 1:
            middle = len(items) // 2
            await self._publish(gateway, items[:middle])
            await self._publish(gateway, items[middle:])
            return
        now = self._clock.monotonic()
        while self._recent and self._recent[0][0] < now - RECENT_S:
            self._recent.popleft()
        self._recent.append((now, gateway, items))
        try:
            await self._bus.publish(subjects.frame_subject(gateway), data)
            self.frames_total += 1
        except BusTooLarge as error:
            self._drop(gateway, len(items), str(error))
        except BusUnavailable:
            self._log.info("frame.deferred", gateway=gateway, items=len(items))  # it goes with the recent ones

    def _drop(self, gateway: str, items: int, error: str) -> None:
        if self.dropped_total == 0:
            self._log.error("frame.dropped", gateway=gateway, error=error)
        self.dropped_total += items
