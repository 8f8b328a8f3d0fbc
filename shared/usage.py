"""Publishes usage events to JetStream: each is kept and sent again until the server has stored it.

Owns the events that are not yet durable, in bounded memory. Invariant: an event leaves only by an acknowledgement; the
stream drops repeats by `Nats-Msg-Id` (request:attempt), so sending again is always safe.

Nearly every event is stored at the first try, so that one is a question whose answer is heard where it is read; only
what failed is followed by a task.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from shared import jobs, log, subjects, tasks, wire
from shared.bus import REQUEST_TIMEOUT_S, Answer, Bus, BusError, BusUnavailable

PENDING_MAX: Final = 20_000
TIMEOUT_S: Final = 5.0  # how long an attempt's end waits for its bill
RETRY_S_MAX: Final = 2.0


@dataclass(slots=True)
class _Pending:
    id: str
    data: bytes
    trace: str | None
    stored: asyncio.Future[None]
    retries: asyncio.Task[None] | None = None


class UsagePublisher:
    """Publishes usage events over a bus. Used by both programs, each for the attempts that it has to bill."""

    def __init__(self, bus: Bus, *, pending_max: int = PENDING_MAX) -> None:
        self._bus = bus
        self._pending_max = pending_max
        self._pending: dict[str, _Pending] = {}
        self._log = log.get("usage")
        self.dropped_total = 0

    @property
    def pending(self) -> int:
        """Events not yet acknowledged."""
        return len(self._pending)

    async def ensure(self) -> None:
        """Create the stream if it is missing; an ensure hook for the bus."""
        await jobs.ensure_stream(self._bus, subjects.usage_stream())

    def submit(self, event: wire.UsageEvent, *, trace: str | None = None) -> asyncio.Future[None]:
        """Send until acknowledged, in the background; the future is done then, and cancelled if it is given up. Repeats
        of a pending event are the same future.
        """
        id_ = f"{event.request}:{event.attempt}"
        if id_ in self._pending:
            return self._pending[id_].stored
        if len(self._pending) >= self._pending_max:
            self._drop_oldest()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pending = self._pending[id_] = _Pending(id_, wire.encode(event), trace, stored)
        try:
            told = partial(self._told, pending)
            headers = {"Nats-Msg-Id": id_}
            self._bus.question(subjects.USAGE_SUBJECT, pending.data, told, headers=headers, timeout_s=REQUEST_TIMEOUT_S)
        except BusError:
            self._keep_trying(pending)
        return stored

    def submit_then(
        self, event: wire.UsageEvent, then: Callable[[bool], None], timeout_s: float, *, trace: str | None = None
    ) -> None:
        """Submit. `then(True)` is called once it is durable, or `then(False)` if that takes longer, and goes on."""
        stored = self.submit(event, trace=trace)

        def done(_: asyncio.Future[None]) -> None:
            timer.cancel()
            then(not stored.cancelled())

        def late() -> None:
            stored.remove_done_callback(done)
            then(False)

        timer = asyncio.get_running_loop().call_later(timeout_s, late)
        stored.add_done_callback(done)

    async def drain(self, timeout_s: float) -> int:
        """Wait for all acknowledgements. Returns how many are still missing."""
        if self._pending:
            await asyncio.wait([pending.stored for pending in self._pending.values()], timeout=timeout_s)
        return self.pending

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        left = list(self._pending.values())
        if left:
            self._log.error("usage.abandoned", events=len(left))
        self._pending.clear()
        await tasks.stop([pending.retries for pending in left if pending.retries is not None])

    def _told(self, pending: _Pending, answer: Answer | None) -> None:
        """Of the first try."""
        if pending.id not in self._pending:
            return
        try:
            stored = self._is_stored(pending, jobs.acknowledged(answer))
        except BusUnavailable:
            stored = False
        if stored:
            self._forget(pending)
        else:
            self._keep_trying(pending)

    def _keep_trying(self, pending: _Pending) -> None:
        pending.retries = asyncio.create_task(self._send(pending), name=f"usage {pending.id}")

    async def _send(self, pending: _Pending) -> None:
        pause_s = 0.1
        while True:
            with contextlib.suppress(BusUnavailable):
                await self._bus.wait_ready(TIMEOUT_S)
                headers = {"Nats-Msg-Id": pending.id}
                ack = await jobs.publish_stored(self._bus, subjects.USAGE_SUBJECT, pending.data, headers)
                if self._is_stored(pending, ack):
                    self._forget(pending)
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)

    def _is_stored(self, pending: _Pending, ack: jobs.Ack) -> bool:
        if ack.error is not None:
            self._log.warning("usage.refused", **_concerns(pending), error=ack.error.description)
        return ack.error is None

    def _drop_oldest(self) -> None:
        oldest = next(iter(self._pending.values()))
        self._log.error("usage.dropped", **_concerns(oldest), pending=self._pending_max)
        del self._pending[oldest.id]
        if oldest.retries is not None:
            oldest.retries.cancel()
        oldest.stored.cancel()
        self.dropped_total += 1

    def _forget(self, pending: _Pending) -> None:
        """It is stored."""
        del self._pending[pending.id]
        if not pending.stored.done():  # whoever awaited it may have been cancelled, and it with him
            pending.stored.set_result(None)


def _concerns(pending: _Pending) -> dict[str, str | None]:
    return {"event_id": pending.id, "request": pending.id.partition(":")[0], "trace": pending.trace}
