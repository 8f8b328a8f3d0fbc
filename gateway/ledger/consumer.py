"""The ledger: takes usage events from JetStream and acknowledges each after it is committed in Postgres.

Also runs what is derived from them (`books.py`). Any number of ledgers share one durable consumer. Knows how events are
delivered, and nothing of their content. Invariant: an event is acknowledged only after its commit, so a crash anywhere
merely delivers it again.
"""

import asyncio
import contextlib
import time
from typing import Final

import asyncpg
import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from gateway.db import pools
from gateway.ledger.books import Books
from gateway.ledger.writer import Writer
from shared import jobs, log, subjects, tasks
from shared.bus import Bus, BusError, translated

BATCH_MAX: Final = 500
GATHER_S: Final = 0.05  # how long a first event waits for company
GATHER_BUSY_S: Final = 0.25  # the same after a batch that had some: a batch costs what several events do
IDLE_S: Final = 5.0
TIMEOUT_S: Final = 2.0
RETRY_S: Final = 1.0
ACK: Final = b"+ACK"
UPKEEP_S: Final = 3_600.0
UPKEEP_RETRY_S: Final = 60.0

_BUS_FAULTS: Final = (BusError, nats.errors.Error, nats.js.errors.Error, OSError)


class Ledger:
    """`run` until cancelled: `async with asyncio.TaskGroup() as group: group.create_task(ledger.run())`."""

    def __init__(self, bus: Bus, pool: asyncpg.Pool) -> None:
        self._bus = bus
        self._log = log.get("ledger")
        self._upkeep_at_s = 0.0
        self._gather_s = GATHER_S
        self.writer = Writer(pool)
        self.books = Books(bus, pool)

    async def run(self) -> None:
        books = asyncio.create_task(self.books.run(), name="books")
        try:
            while True:
                try:
                    await self._serve()
                except _BUS_FAULTS as error:
                    self._log.warning("ledger.bus_away", error=repr(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            await tasks.stop([books])

    async def _serve(self) -> None:
        """One subscription, until nothing has come for a while, or a fault. It is always made anew, because a pull
        subscription may receive nothing after a server restart, and the stream or the consumer may be gone.
        """
        await self._bus.wait_ready(TIMEOUT_S)
        subscription = await self._subscribe()
        try:
            while True:
                await self._upkeep()
                messages = await self._next(subscription)
                if not messages:
                    return
                self._gather_s = GATHER_BUSY_S if len(messages) > 1 else GATHER_S
                await self._take(messages)
        finally:
            with contextlib.suppress(*_BUS_FAULTS):
                await subscription.unsubscribe()

    async def _subscribe(self) -> JetStreamContext.PullSubscription:
        await jobs.ensure_stream(self._bus, subjects.usage_stream())
        jetstream = self._bus.jetstream()
        with translated():
            await jetstream.add_consumer(subjects.USAGE_STREAM, subjects.usage_consumer())
            return await jetstream.pull_subscribe_bind(subjects.USAGE_CONSUMER, subjects.USAGE_STREAM)

    async def _next(self, subscription: JetStreamContext.PullSubscription) -> list[Msg]:
        """A batch; empty when nothing came for a while. A pull must expire and is never cancelled, because the server
        goes on delivering messages to an abandoned one.
        """
        try:
            first = await subscription.fetch(1, timeout=IDLE_S)
        except (nats.errors.TimeoutError, TimeoutError):
            return []
        try:
            return first + await subscription.fetch(BATCH_MAX - 1, timeout=self._gather_s)
        except (nats.errors.TimeoutError, TimeoutError):
            return first
        except asyncio.CancelledError:
            await _hand_back(first)
            raise

    async def _take(self, messages: list[Msg]) -> None:
        try:
            await self.writer.write([message.data for message in messages])
        except asyncio.CancelledError:
            await _hand_back(messages)
            raise
        except pools.AWAY as error:
            self._log.error("ledger.postgres_away", events=len(messages), error=repr(error))
            await _hand_back(messages)
            await asyncio.sleep(RETRY_S)
            return
        for message in messages:
            await self._bus.publish(message.reply, ACK)

    async def _upkeep(self) -> None:
        """Runs apart from the booking of events. What fails is retried in a minute."""
        if time.monotonic() < self._upkeep_at_s:
            return
        try:
            await self.writer.upkeep()
        except pools.AWAY as error:
            self._log.warning("ledger.upkeep_failed", error=repr(error))
            self._upkeep_at_s = time.monotonic() + UPKEEP_RETRY_S
        else:
            self._upkeep_at_s = time.monotonic() + UPKEEP_S


async def _hand_back(messages: list[Msg]) -> None:
    """Ask for immediate redelivery, to any ledger; otherwise the messages would wait for the consumer's `ack_wait`."""
    for message in messages:
        await message.nak(delay=RETRY_S)
