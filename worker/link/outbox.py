"""The worker's messages to the gateways: everything of one step for one gateway goes out in one frame.

Owns the order: items for a gateway (chunks, ends, rolls) are published in the order in which they were added, on one
subject.

Core NATS drops what is in transit when a connection breaks, and what is sent to a gateway that has not yet reconnected.
So nothing is published while the bus is not ready, and after an outage a gateway gets nothing until it is heard. Then,
and when a gateway's beat shows that it has reconnected, everything that was sent since shortly before it was last heard
is sent again; the gateway drops what it already has. What does not fit in memory is lost; the gap in `seq` tells the
gateway which attempts end by it.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from shared import log, subjects, wire
from shared.bus import Bus, BusTooLarge, BusUnavailable
from shared.clock import Clock
from worker.link.limits import LinkLimits

Item = wire.Accepted | wire.Chunk | wire.End | wire.Roll

FRAME_ITEMS_MAX: Final = 4_096  # bounds the time of one encoding, however much an outage has piled up
RECENT_S: Final = 1.0  # a lost connection is usually noticed sooner than this


@dataclass(slots=True)
class _Line:
    """The state of the connection to one gateway."""

    heard_at: float
    connection: int | None = None  # the last one that its beats reported
    sent: deque[tuple[float, list[Item]]] = field(default_factory=deque[tuple[float, list[Item]]])  # (when, items)


class Outbox:
    def __init__(self, bus: Bus, worker: str, limits: LinkLimits, clock: Clock) -> None:
        self._bus = bus
        self._worker = worker
        self._limits = limits
        self._clock = clock
        self._pending: dict[str, list[Item]] = {}
        self._pending_count = 0
        self._lines: dict[str, _Line] = {}
        self._cut_off: set[str] = set()  # gateways not heard since the last outage
        self._changed = asyncio.Event()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._log = log.get("outbox")
        self.frames_total = 0
        self.dropped_total = 0

    def add(self, gateway: str, item: Item) -> None:
        """Sent in the next iteration of `run`, which is after the callback that calls this: one frame per step."""
        if self._pending_count >= self._limits.outbox_items_max:
            self._drop(gateway, 1, "the outbox is full")
            return
        self._pending.setdefault(gateway, []).append(item)
        self._pending_count += 1
        self._emptied.clear()
        self._changed.set()

    async def run(self) -> None:
        """Runs for ever: publishes what was added."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for gateway in [*self._pending]:
                if self._may_send(gateway):  # checked again after each publish, during which everything can change
                    await self._publish(gateway, *self._take(gateway))
            if not self._pending:
                self._emptied.set()
            if not self._bus.ready:
                await asyncio.sleep(self._limits.beat_s)
                self._changed.set()

    async def flush(self) -> None:
        """Wait until everything added so far has been handed to NATS."""
        await self._emptied.wait()

    async def reconnected(self) -> None:
        """An ensure hook for the bus."""
        self._cut_off = {*self._pending, *(gateway for gateway, line in self._lines.items() if _since(line))}

    def heard(self, gateway: str, connection: int) -> None:
        """The gateway listens, over this one of its connections."""
        now = self._clock.monotonic()
        line = self._lines.setdefault(gateway, _Line(now))
        if gateway in self._cut_off or line.connection not in (None, connection):
            self._cut_off.discard(gateway)
            self._repeat(gateway, line)
        line.heard_at = now
        line.connection = connection

    def forget(self, gateway: str) -> None:
        """The gateway will not come back."""
        self._pending_count -= len(self._pending.pop(gateway, []))
        self._lines.pop(gateway, None)
        self._cut_off.discard(gateway)
        self._changed.set()

    def _repeat(self, gateway: str, line: _Line) -> None:
        # A roll is valid only at its place among the other items.
        again = [item for _, items in _since(line) for item in items if not isinstance(item, wire.Roll)]
        line.sent.clear()
        if again:
            self._pending[gateway] = again + self._pending.get(gateway, [])
            self._pending_count += len(again)
            self._emptied.clear()
        self._changed.set()

    def _remember(self, gateway: str, items: list[Item]) -> None:
        """Called before any of these items is sent, so that a repetition never overtakes a part of them."""
        now = self._clock.monotonic()
        line = self._lines.setdefault(gateway, _Line(now))
        _since(line).append((now, items))

    def _may_send(self, gateway: str) -> bool:
        return self._bus.ready and gateway not in self._cut_off and gateway in self._pending

    def _take(self, gateway: str) -> tuple[bytes, int]:
        """A frame, and the number of its items. The others stay pending, so that after an outage they follow the
        repeats.
        """
        pending = self._pending.pop(gateway)
        count = min(len(pending), FRAME_ITEMS_MAX)
        data = self._encode(pending[:count])
        while len(data) > self._limits.frame_bytes_max and count > 1:
            count //= 2
            data = self._encode(pending[:count])
        if count < len(pending):
            self._pending[gateway] = pending[count:]
            self._changed.set()
        self._pending_count -= count
        self._remember(gateway, pending[:count])
        return data, count

    def _encode(self, items: list[Item]) -> bytes:
        return wire.encode(wire.Frame(worker=self._worker, items=tuple(items)))

    async def _publish(self, gateway: str, data: bytes, items: int) -> None:
        try:
            await self._bus.publish(subjects.frame_subject(gateway), data)
            self.frames_total += 1
        except BusTooLarge as error:
            self._drop(gateway, items, str(error))
        except BusUnavailable:
            self._log.info("frame.deferred", gateway=gateway, items=items)  # it is repeated with the recent items

    def _drop(self, gateway: str, items: int, error: str) -> None:
        if self.dropped_total == 0:
            self._log.error("frame.dropped", gateway=gateway, error=error)
        self.dropped_total += items


def _since(line: _Line) -> deque[tuple[float, list[Item]]]:
    """What the gateway may not have received: everything sent since shortly before it was last heard."""
    while line.sent and line.sent[0][0] < line.heard_at - RECENT_S:
        line.sent.popleft()
    return line.sent
