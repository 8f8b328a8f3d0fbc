"""Detects what no message reports: lost workers, a NATS outage, jobs that a restarted server has lost.

Owns two polling loops and no state. `Endings` carries out its conclusions.
"""

import asyncio

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.breaker import Breakers
from gateway.dispatch.endings import Endings
from gateway.dispatch.fleet import FleetView
from gateway.dispatch.inbox import Inbox
from gateway.dispatch.limits import DispatchLimits
from gateway.dispatch.publisher import Publisher
from gateway.errors import GatewayError, Unavailable
from shared import log
from shared.bus import Bus, BusUnavailable
from shared.clock import Clock
from shared.jobs import JobQueue


class Reconciler:
    def __init__(
        self,
        *,
        bus: Bus,
        queue: JobQueue,
        inbox: Inbox,
        fleet: FleetView,
        endings: Endings,
        breakers: Breakers,
        publisher: Publisher,
        limits: DispatchLimits,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._queue = queue
        self._inbox = inbox
        self._fleet = fleet
        self._endings = endings
        self._breakers = breakers
        self._publisher = publisher
        self._limits = limits
        self._clock = clock
        self._doubts = asyncio.Event()
        self._log = log.get("dispatch")

    async def reconnected(self) -> None:
        """An ensure hook for the bus: beats were missed and queues may have been emptied."""
        self._fleet.silence.reset()
        self._doubts.set()

    async def sweep(self) -> None:
        """Runs for ever: looks for silent workers, outages, and jobs that nobody can take or has shown."""
        while True:
            await asyncio.sleep(self._limits.beat_s)
            now = self._clock.monotonic()
            for worker in self._fleet.newly_lost(now):
                held = self._inbox.of_worker(worker)
                self._log.warning("worker.lost", worker=worker, attempts=len(held))
                if held:
                    self._breakers.lost(held[0].pool, now)
                self._lose_all(worker)
                self._doubts.set()  # it may have claimed jobs that it never accepted
            for worker in self._fleet.hanging():
                self._lose_all(worker)  # again, for what it has accepted meanwhile
            outage = self._bus.down_s() > self._limits.nats_outage_s
            for attempt in self._inbox.attempts():
                if attempt.left is None:
                    self._judge(attempt, now, outage=outage)

    async def look_up(self) -> None:
        """Runs for ever: when in doubt, checks whether unaccepted jobs are still in their queues."""
        while True:
            await self._doubts.wait()
            self._doubts.clear()
            try:
                await self._bus.wait_ready(self._limits.nats_wait_s)
                for attempt in self._inbox.attempts():
                    if _is_queued(attempt):
                        await self._look_up(attempt)
            except BusUnavailable:
                self._doubts.set()
                await asyncio.sleep(self._limits.beat_s)

    def _lose_all(self, worker: str) -> None:
        for attempt in self._inbox.of_worker(worker):
            self._endings.lost(attempt)

    def _judge(self, attempt: Attempt, now: float, *, outage: bool) -> None:
        if outage:
            self._give_up(attempt, "The connection to the fleet was lost. Please retry.")
        elif self._endings.unseen_too_long(attempt):
            self._endings.lost(attempt)
        elif attempt.worker is None:
            if self._fleet.serves(attempt.job.card):
                attempt.workerless_since = None
            elif attempt.workerless_since is None:
                attempt.workerless_since = now
            elif now - attempt.workerless_since > self._limits.no_worker_s:
                self._give_up(attempt, "No worker is available for this model. Please retry shortly.")

    def _give_up(self, attempt: Attempt, message: str) -> None:
        attempt.fail(Unavailable(message, retry_after_ms=1000))
        self._endings.leave(attempt, "client")

    async def _look_up(self, attempt: Attempt) -> None:
        assert attempt.sequence is not None
        presence = await self._queue.presence(attempt.pool, attempt.job.tier, attempt.sequence)
        if not _is_queued(attempt) or presence == "queued":
            return
        if presence == "gone":
            attempt.unseen_since = self._clock.monotonic()
            return
        self._log.info("job.republished", request=attempt.request, trace=attempt.trace)
        attempt.sequence = None
        try:
            await self._publisher.publish(attempt)
        except Unavailable:
            self._give_up(attempt, "The connection to the fleet was lost. Please retry.")
        except GatewayError as error:
            attempt.fail(error)
            if attempt.worker is None and not attempt.over.is_set():
                self._endings.never_ran(attempt, "error")


def _is_queued(attempt: Attempt) -> bool:
    """Whether, as far as this gateway knows, it waits for a worker."""
    return (
        attempt.sequence is not None
        and attempt.worker is None
        and attempt.left is None
        and attempt.unseen_since is None
        and not attempt.over.is_set()
    )
