"""Publishes usage events to JetStream: each is kept and sent again until the server has stored it.

Owns the events that are not yet durable, in bounded memory. Invariant: an event leaves only by an acknowledgement; the
stream drops repeats by `Nats-Msg-Id` (request:attempt), so sending again is always safe.
"""

import asyncio
import contextlib
from typing import Final, Self

from shared import jobs, log, subjects, tasks, wire
from shared.bus import Bus, BusUnavailable

PENDING_MAX: Final = 20_000
TIMEOUT_S: Final = 5.0  # how long an attempt's end waits for its bill
RETRY_S_MAX: Final = 2.0


class UsagePublisher:
    """Publishes usage events over a bus. Used by both programs, each for the attempts that it has to bill."""

    def __init__(self, bus: Bus, *, pending_max: int = PENDING_MAX) -> None:
        self._bus = bus
        self._pending_max = pending_max
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._traces: dict[str, str | None] = {}  # of what is being sent, for the log
        self._log = log.get("usage")
        self.dropped_total = 0

    @property
    def pending(self) -> int:
        """Events not yet acknowledged."""
        return len(self._sending)

    async def ensure(self) -> None:
        """Create the stream if it is missing; an ensure hook for the bus."""
        await jobs.ensure_stream(self._bus, subjects.usage_stream())

    def submit(self, event: wire.UsageEvent, *, trace: str | None = None) -> asyncio.Task[None]:
        """Send until acknowledged, in the background. Repeats of a pending event are the same task."""
        msg_id = f"{event.request}:{event.attempt}"
        if msg_id in self._sending:
            return self._sending[msg_id]
        if len(self._sending) >= self._pending_max:
            self._drop_oldest()
        task = asyncio.create_task(self._send(msg_id, wire.encode(event)), name=f"usage {msg_id}")
        self._sending[msg_id] = task
        self._traces[msg_id] = trace
        task.add_done_callback(lambda _: self._forget(msg_id))
        return task

    async def publish(self, event: wire.UsageEvent, timeout_s: float = TIMEOUT_S, *, trace: str | None = None) -> bool:
        """Submit and wait. True if it is durable; False if that takes longer, and goes on in the background."""
        task = self.submit(event, trace=trace)
        done, _ = await asyncio.wait([task], timeout=timeout_s)
        return bool(done) and not task.cancelled()

    async def drain(self, timeout_s: float) -> int:
        """Wait for all acknowledgements. Returns how many are still missing."""
        if self._sending:
            await asyncio.wait(list(self._sending.values()), timeout=timeout_s)
        return self.pending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        sending = list(self._sending.values())
        if sending:
            self._log.error("usage.abandoned", events=len(sending))
        await tasks.stop(sending)

    async def _send(self, msg_id: str, data: bytes) -> None:
        pause_s = 0.1
        while True:
            with contextlib.suppress(BusUnavailable):
                await self._bus.wait_ready(TIMEOUT_S)
                if await self._try(msg_id, data):
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    async def _try(self, msg_id: str, data: bytes) -> bool:
        ack = await jobs.publish_stored(self._bus, subjects.USAGE_SUBJECT, data, {"Nats-Msg-Id": msg_id})
        if ack.error is not None:
            self._log.warning("usage.refused", **self._concerns(msg_id), error=ack.error.description)
        return ack.error is None

    def _drop_oldest(self) -> None:
        msg_id, task = next(iter(self._sending.items()))
        self._log.error("usage.dropped", **self._concerns(msg_id), pending=self._pending_max)
        self._forget(msg_id)
        task.cancel()
        self.dropped_total += 1

    def _concerns(self, msg_id: str) -> dict[str, str | None]:
        return {"event_id": msg_id, "request": msg_id.partition(":")[0], "trace": self._traces.get(msg_id)}

    def _forget(self, msg_id: str) -> None:
        self._sending.pop(msg_id, None)
        self._traces.pop(msg_id, None)
