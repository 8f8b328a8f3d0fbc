"""The endings of attempts that no worker ends by itself: taken back, cancelled, lost.

Owns every step from the decision to stop an attempt until it is stopped and has exactly one bill. Invariant: an attempt
that its reader left is followed here until it is over; the worker bills it if the worker ends it, otherwise this module
does.
"""

import asyncio
import contextlib

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.bills import bill
from gateway.dispatch.inbox import Inbox
from gateway.dispatch.limits import DispatchLimits
from gateway.dispatch.retries import RetryBudget
from gateway.errors import GatewayError, WorkerLost
from shared import log, subjects, wire
from shared.bus import Bus, BusUnavailable
from shared.clock import Clock
from shared.jobs import JobQueue, Taken
from shared.tasks import Tasks
from shared.usage import UsagePublisher


class Endings:
    def __init__(
        self,
        *,
        gateway: str,
        bus: Bus,
        queue: JobQueue,
        usage: UsagePublisher,
        inbox: Inbox,
        retries: RetryBudget,
        tasks: Tasks,
        limits: DispatchLimits,
        clock: Clock,
    ) -> None:
        self._gateway = gateway
        self._bus = bus
        self._queue = queue
        self._usage = usage
        self._inbox = inbox
        self._retries = retries
        self._tasks = tasks
        self._limits = limits
        self._clock = clock
        self._log = log.get("dispatch")

    def never_ran(self, attempt: Attempt, finish: str) -> None:
        """End an attempt that no worker has or will get."""
        self._close(attempt, finish)

    def lost(self, attempt: Attempt) -> None:
        """End an attempt that a worker had, or may have had, and from which nothing more will come."""
        if attempt.over.is_set():
            return
        self._log.warning(
            "attempt.lost",
            request=attempt.request,
            trace=attempt.trace,
            worker=attempt.worker,
            tokens=sum(attempt.tokens),
        )
        now, tenant = self._clock.monotonic(), attempt.job.tenant
        self._retries.failed(tenant, now)
        retry = self._retries.allows(tenant, now)
        attempt.fail(WorkerLost("The worker that was generating this answer was lost.", retry=retry))
        self._close(attempt, "lost")

    def leave(self, attempt: Attempt, reason: wire.CancelReason) -> None:
        """Nobody reads it any more: stop it in the background, wherever it is. Idempotent."""
        if attempt.left is not None or attempt.over.is_set():
            return
        attempt.left = reason
        self._tasks.spawn(self._retire(attempt), "retire", request=attempt.request, trace=attempt.trace)

    async def shed(self, attempt: Attempt, error: GatewayError) -> None:
        """It has waited for too long: take it back from its queue. If a worker has claimed it meanwhile, it goes on."""
        taken: Taken | None = None
        with contextlib.suppress(BusUnavailable):
            if attempt.sequence is not None:
                taken = await self._queue.take(attempt.pool, attempt.job.tier, attempt.sequence)
        if attempt.worker is not None or attempt.over.is_set():
            return
        if taken == "taken":
            attempt.fail(error)
            self.never_ran(attempt, "cancelled")
        elif taken is None:
            attempt.fail(error)
            self.leave(attempt, "deadline")
        elif attempt.unseen_since is None:
            attempt.unseen_since = self._clock.monotonic()

    async def cancel(self, worker: str, cancels: list[wire.Cancel]) -> None:
        """At most once; callers that depend on it repeat it."""
        with contextlib.suppress(BusUnavailable):
            for cancel in cancels:
                await self._bus.publish(subjects.cancel_subject(worker), wire.encode(cancel))

    def _close(self, attempt: Attempt, finish: str) -> None:
        self._inbox.remove(attempt)
        attempt.close()
        event = bill(attempt, finish=finish, gateway=self._gateway, now=self._clock.monotonic())
        self._usage.submit(event, trace=attempt.trace)

    async def _retire(self, attempt: Attempt) -> None:
        if attempt.publishing is not None:
            await asyncio.wait([attempt.publishing])  # its sequence number is needed to take it back
        while not attempt.over.is_set():
            try:
                await self._bus.wait_ready(self._limits.nats_wait_s)
                if attempt.worker is not None:
                    await self._cancel_running(attempt)
                else:
                    await self._take_back(attempt)
            except BusUnavailable:
                await asyncio.sleep(self._limits.beat_s)

    async def _cancel_running(self, attempt: Attempt) -> None:
        assert attempt.worker is not None
        assert attempt.left is not None
        cancel = wire.Cancel(request=attempt.request, attempt=attempt.job.attempt, reason=attempt.left)
        await self.cancel(attempt.worker, [cancel])
        await _wait(attempt.over, self._limits.cancel_repeat_s)

    async def _take_back(self, attempt: Attempt) -> None:
        if attempt.unseen_since is None:
            if attempt.sequence is not None:
                taken = await self._queue.take(attempt.pool, attempt.job.tier, attempt.sequence)
                if taken == "taken":
                    self.never_ran(attempt, "cancelled")
                    return
            # Gone, in doubt, or perhaps never stored: a worker that claimed it will show it.
            attempt.unseen_since = self._clock.monotonic()
        await _wait(attempt.bound, self._limits.beat_s)
        if self.unseen_too_long(attempt):
            self.lost(attempt)

    def unseen_too_long(self, attempt: Attempt) -> bool:
        """Whether it has left its queue without a worker showing it for too long, while NATS was connected."""
        if attempt.unseen_since is None or attempt.worker is not None or not self._bus.ready:
            return False
        unseen_s = self._clock.monotonic() - attempt.unseen_since
        return min(unseen_s, self._bus.ready_s()) > self._limits.unseen_s


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
