"""The gateway's end of the protocol: publishes jobs, routes what comes back, and follows every attempt to its end.

Owns the gateway's NATS connection and the wiring of this package; its neighbours make the decisions. Knows nothing of
HTTP, limits or Postgres. Invariant: once `open` has been entered, exactly one final usage event for the attempt is on
its way or will be written by a worker, however `open` is left.
"""

import asyncio
import contextlib
import random
from functools import partial
from typing import Self

import msgspec

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.backlog import UsageBacklog
from gateway.dispatch.card_fetcher import CardFetcher, OnCard
from gateway.dispatch.endings import Endings
from gateway.dispatch.fleet import FleetView
from gateway.dispatch.inbox import Inbox
from gateway.dispatch.limits import DispatchLimits
from gateway.dispatch.overload import Overload
from gateway.dispatch.publisher import Publisher
from gateway.dispatch.reconcile import Reconciler
from gateway.dispatch.report import FleetReport, fleet_report
from gateway.dispatch.spans import spans
from gateway.dispatch.stream import RequestStream
from gateway.dispatch.terms import Terms
from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, RequestFailed, Unavailable
from shared import cards, ids, log, subjects, wire
from shared.bus import Bus, BusError, BusUnavailable
from shared.clock import Clock, SystemClock
from shared.jobs import JobQueue
from shared.tasks import Tasks
from shared.trace import Off, Tracer
from shared.usage import UsagePublisher

READY_S = 1.0  # less than the readiness check waits, or the reason would be lost
BACKLOG_RETRY_AFTER_MS = 10_000
WORKERS_FAULTS = ("engine_error", "device_failed")  # of wire.End.error


class Dispatcher:
    """Use as `async with Dispatcher(nats_url) as dispatcher`. Entering does not wait for NATS."""

    def __init__(
        self,
        nats_url: str,
        *,
        on_card: OnCard | None = None,
        gateway_id: str | None = None,
        limits: DispatchLimits | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.gateway_id = gateway_id or ids.process_id("gw")
        self.limits = limits or DispatchLimits()
        self.fleet = FleetView(self.limits.worker_silence_s)
        self._clock = clock or SystemClock()
        self._tracer = tracer or Off()
        self._incarnation = ids.process_id("in")
        self._log = log.get("dispatch").bind(gateway=self.gateway_id)
        self._stack = contextlib.AsyncExitStack()
        self.bus = Bus(nats_url, name=self.gateway_id, role="gateway")
        self._queue = JobQueue(self.bus)
        self.usage = UsagePublisher(self.bus)
        self._backlog = UsageBacklog(self.bus, self.limits.backlog_check_s)
        self._tasks = Tasks("dispatch")
        self._cards = CardFetcher(self.bus, self.fleet, on_card, look_s=self.limits.beat_s)
        self._inbox = Inbox()
        self.overload = Overload(self.fleet, random=random.random)
        self._publisher = Publisher(self.bus, self._queue, self._tasks, self.limits, self._clock)
        self._endings = Endings(
            gateway=self.gateway_id,
            bus=self.bus,
            queue=self._queue,
            usage=self.usage,
            inbox=self._inbox,
            retries=self.overload.retries,
            tasks=self._tasks,
            limits=self.limits,
            clock=self._clock,
        )
        self._reconciler = Reconciler(
            bus=self.bus,
            queue=self._queue,
            inbox=self._inbox,
            fleet=self.fleet,
            endings=self._endings,
            breakers=self.overload.breakers,
            publisher=self._publisher,
            limits=self.limits,
            clock=self._clock,
        )

    async def __aenter__(self) -> Self:
        self.bus.on_connect(self.usage.ensure)
        self.bus.on_connect(lambda: cards.ensure_bucket(self.bus))
        self.bus.on_connect(self._reconciler.reconnected)
        await self._stack.enter_async_context(self.bus)
        await self._stack.enter_async_context(self.usage)
        await self._stack.enter_async_context(self._tasks)
        await self.bus.subscribe(subjects.frame_subject(self.gateway_id), self._on_frame)
        await self.bus.subscribe(subjects.WORKER_BEATS, self._on_worker_beat)
        await self.bus.subscribe(subjects.GATEWAY_BEATS, self._on_gateway_beat)
        self._tasks.spawn(self._beat(), "beat")
        self._tasks.spawn(self._cards.run(), "cards")
        self._tasks.spawn(self._backlog.watch(), "usage backlog")
        self._tasks.spawn(self._reconciler.sweep(), "sweep")
        self._tasks.spawn(self._reconciler.look_up(), "look up")
        return self

    async def __aexit__(self, *_: object) -> None:
        attempts = self._inbox.attempts()
        for attempt in attempts:
            attempt.fail(Unavailable("The gateway is shutting down."))
            self._endings.leave(attempt, "shutdown")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.limits.usage_drain_s):
                for attempt in attempts:
                    await attempt.over.wait()
        await self.usage.drain(self.limits.usage_drain_s)
        await self._stack.aclose()

    @property
    def open_attempts(self) -> int:
        """The number of attempts that are not over, including those whose reader has left."""
        return len(self._inbox)

    def report(self) -> FleetReport:
        """The fleet as this gateway knows it now."""
        return fleet_report(self.fleet, self.overload, self._clock.monotonic())

    async def ready(self) -> None:
        """A NATS round trip. Raises Unavailable."""
        if self._tasks.failed is not None:
            raise Unavailable(f"The task {self._tasks.failed!r} has failed.")
        try:
            await self.bus.round_trip(READY_S)
        except BusError as error:
            raise Unavailable(str(error)) from error

    def check_load(self, job: wire.Job, pool: str, terms: Terms) -> None:
        """Refuses what `open` would refuse for load, before anything is reserved. Raises QueueFull, Unavailable."""
        self.overload.check_load(job, pool, terms, self._clock.monotonic())

    async def open(self, job: wire.Job, *, pool: str, terms: Terms, run_s: float) -> RequestStream:
        """Publish a job and wait until a worker has accepted it; the caller leaves its stream. `terms` count from now.

        Raises BodyTooLarge, QueueFull, Unavailable, DeadlineExceeded (nobody took it in time), InvalidRequest
        (the worker can never hold it), RequestFailed, WorkerLost.
        """
        assert job.gateway == self.gateway_id, "the answer would go elsewhere"
        if len(self._inbox) >= self.limits.attempts_max:
            raise Unavailable("The gateway has too many open requests.", retry_after_ms=1000)
        if self._backlog.full:
            raise Unavailable("Usage cannot be recorded at the moment.", retry_after_ms=BACKLOG_RETRY_AFTER_MS)
        now = self._clock.monotonic()
        attempt = Attempt(job, pool, now, reader_bytes_max=self.limits.reader_bytes_max)
        self.overload.check(job, pool, terms, now)
        self._inbox.add(attempt)
        try:
            await self._start(attempt, terms)
        except BaseException:
            await self._leave(attempt)
            raise
        attempt.timer = asyncio.get_running_loop().call_later(run_s, self._run_out, attempt)
        return RequestStream(attempt, self._leave)

    # -- the stages of one attempt

    async def _start(self, attempt: Attempt, terms: Terms) -> None:
        """Wait until a worker has accepted the attempt. Raises GatewayError."""
        waited_s = self._clock.monotonic() - attempt.opened_at
        left_s = max(terms.timeout_s - waited_s - self.limits.shed_early_s, 0.0)
        attempt.timer = asyncio.get_running_loop().call_later(left_s, self._shed, attempt, terms)
        with self.overload.queues.holding(attempt.job, attempt.pool):
            self._publisher.begin(attempt, partial(self._not_published, attempt, terms))
            await attempt.answered.wait()
        attempt.timer.cancel()
        if attempt.worker is not None:
            self.fleet.accepted(attempt.worker, attempt.job)
        if attempt.error is not None and not any(attempt.tokens):
            raise attempt.error

    def _not_published(self, attempt: Attempt, terms: Terms, error: GatewayError) -> None:
        if isinstance(error, QueueFull):
            now = self._clock.monotonic()
            error.retry_after_ms = self.overload.advice_ms(attempt.job, attempt.pool, terms, now)
        attempt.fail(error)
        if not isinstance(error, Unavailable):  # after Unavailable it may have been stored: leaving it finds out
            self._endings.never_ran(attempt, "error")

    def _shed(self, attempt: Attempt, terms: Terms) -> None:
        """No worker took it in time: it ends when it has been taken back from its queue, unless a worker claims it
        before that.
        """
        error = self.overload.late(attempt.job, attempt.pool, terms, self._clock.monotonic())
        shedding = self._endings.shed(attempt, error)
        self._tasks.spawn(shedding, "shed", request=attempt.request, trace=attempt.trace)

    def _run_out(self, attempt: Attempt) -> None:
        attempt.fail(DeadlineExceeded("The request exceeded its running time."))
        self._endings.leave(attempt, "deadline")

    async def _leave(self, attempt: Attempt) -> None:
        """Cancel it unless it has ended, and wait a moment for the worker's counts, which will be billed."""
        if attempt.timer is not None:
            attempt.timer.cancel()
        try:
            if not attempt.over.is_set():
                self._endings.leave(attempt, "client")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.limits.leave_wait_s):
                        await attempt.over.wait()
        finally:
            if attempt.sampled:
                self._tracer.record(spans(attempt, self._clock.monotonic()))
            if attempt.worker is not None:
                self.fleet.ended(attempt.worker, attempt.job)

    @property
    def _awaits_repeats(self) -> bool:
        """Whether workers may still repeat what a lost connection dropped: it was restored only just now, or not
        yet.
        """
        if not self.bus.ready:
            return True
        return self.bus.connection > 1 and self.bus.ready_s() < self.limits.repeat_s

    # -- messages. Handlers never wait: they are called one after the other.

    def _on_frame(self, _: str, data: bytes) -> None:
        try:
            frame = wire.decode(data, wire.Frame)
        except msgspec.DecodeError as error:
            self._log.error("frame.unreadable", error=str(error))
            return
        verdicts = self._inbox.on_frame(frame, self._clock.monotonic(), patient=self._awaits_repeats)
        cancels = verdicts.cancels
        for attempt in verdicts.ended:
            self._note_outcome(attempt)
        for attempt in verdicts.lost:
            self._endings.lost(attempt)
            cancels.append(wire.Cancel(request=attempt.request, attempt=attempt.job.attempt, reason="duplicate"))
        for attempt in verdicts.slow:
            attempt.fail(RequestFailed("The client does not read its stream.", code="slow_reader"))
            self._endings.leave(attempt, "slow_reader")
        if cancels:
            self._tasks.spawn(self._endings.cancel(frame.worker, cancels), "cancel")

    def _note_outcome(self, attempt: Attempt) -> None:
        """Report the outcome of an attempt to the breakers and the retry budgets. A cancelled attempt, and one that
        failed by the client's fault, says nothing of the workers.
        """
        end, job, now = attempt.end, attempt.job, self._clock.monotonic()
        assert end is not None
        if end.outcome == "finished":
            self.overload.breakers.succeeded(attempt.pool, job.tenant, now)
        elif end.error in WORKERS_FAULTS:
            self.overload.breakers.failed(attempt.pool, job.tenant, now)
            self.overload.retries.failed(job.tenant, now)
            if attempt.error is not None:
                attempt.error.retry = self.overload.retries.allows(job.tenant, now)

    def _on_gateway_beat(self, subject: str, data: bytes) -> None:
        now = self._clock.monotonic()
        if subject == subjects.gateway_beat_subject(self.gateway_id):
            self.fleet.silence.own_beat(now)
            return
        with contextlib.suppress(msgspec.DecodeError):
            self.overload.queues.heard(wire.decode(data, wire.GatewayBeat), now)

    def _on_worker_beat(self, _: str, data: bytes) -> None:
        with contextlib.suppress(msgspec.DecodeError):
            self.fleet.on_beat(wire.decode(data, wire.WorkerBeat), self._clock.monotonic())

    # -- loops

    async def _beat(self) -> None:
        subject = subjects.gateway_beat_subject(self.gateway_id)
        while True:
            if self.bus.ready:  # not into the buffer of a lost connection, which would deliver outdated beats later
                beat = wire.GatewayBeat(
                    gateway=self.gateway_id,
                    incarnation=self._incarnation,
                    connection=self.bus.connection,
                    queued=self.overload.queues.rows(),
                )
                with contextlib.suppress(BusUnavailable):
                    await self.bus.publish(subject, wire.encode(beat))
            await asyncio.sleep(self.limits.beat_s)
