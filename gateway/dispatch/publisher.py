"""Publishes an attempt's job: when the attempt is opened, and again when a NATS restart has lost the job.

Owns the retries and the error that each refusal means to the client. Nobody waits for the publication itself: a
worker's acceptance of the job implies it.
"""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.limits import DispatchLimits
from gateway.errors import BodyTooLarge, GatewayError, QueueFull, Unavailable
from shared import jobs, wire
from shared.bus import Bus, BusTooLarge, BusUnavailable
from shared.clock import Clock
from shared.jobs import JobQueue, QueueMissing, QueueRefused
from shared.nats_client import Answer
from shared.tasks import Tasks

# Beyond the deadline, at which the gateway takes its job back; the stream's expiry is a safety net.
TTL_SLACK_S: Final = 10
TRY_S: Final = 1.0
PAUSE_S: Final = 0.05
FULL_RETRY_AFTER_MS: Final = 1000

Failed = Callable[[GatewayError], None]
"""Called when a job could not be published. After Unavailable it may still be in its queue, after any other error
not.
"""


class Publisher:
    def __init__(self, bus: Bus, queue: JobQueue, tasks: Tasks, limits: DispatchLimits, clock: Clock) -> None:
        self._bus = bus
        self._queue = queue
        self._tasks = tasks
        self._limits = limits
        self._clock = clock

    def begin(self, attempt: Attempt, failed: Failed) -> None:
        """Publish in the background, and note the sequence number when it is known. `attempt.publishing` is not done
        until then. The publication goes on even if the reader leaves.
        """
        attempt.publishing = asyncio.get_running_loop().create_future()
        message = _message(attempt)

        try:
            self._queue.post(message, partial(self._on_answer, attempt, message, failed), timeout_s=TRY_S)
        except (BusTooLarge, BusUnavailable):
            self._try_again(attempt, message, failed)

    async def publish(self, attempt: Attempt) -> None:
        """The same, but waits. Raises QueueFull and BodyTooLarge (the job is not queued), Unavailable (it may be)."""
        await self._publish(attempt, _message(attempt))

    def _on_answer(self, attempt: Attempt, message: jobs.Publication, failed: Failed, answer: Answer | None) -> None:
        try:
            self._stored(attempt, jobs.posted(answer))
        except QueueRefused as error:
            failed(_full(error))
        except BusUnavailable:
            if attempt.worker is None:
                self._try_again(attempt, message, failed)
                return
        _decided(attempt)

    def _try_again(self, attempt: Attempt, message: jobs.Publication, failed: Failed) -> None:
        trying = self._keep_trying(attempt, message, failed)
        self._tasks.spawn(trying, "publish", request=attempt.request, trace=attempt.trace)

    async def _keep_trying(self, attempt: Attempt, message: jobs.Publication, failed: Failed) -> None:
        try:
            await self._publish(attempt, message)
        except GatewayError as error:
            if attempt.worker is None:
                failed(error)
        finally:
            _decided(attempt)

    async def _publish(self, attempt: Attempt, message: jobs.Publication) -> None:
        deadline = self._clock.monotonic() + self._limits.nats_wait_s
        while True:
            left_s = deadline - self._clock.monotonic()
            try:
                await self._bus.wait_ready(max(left_s, 0.0))
                sequence = await self._publish_once(attempt, message, max(PAUSE_S, min(left_s, TRY_S)))
            except QueueRefused as error:
                raise _full(error) from None
            except BusTooLarge:
                raise BodyTooLarge(f"The request is too large to dispatch: {len(message.data)} bytes.") from None
            except BusUnavailable as error:
                if self._clock.monotonic() >= deadline:
                    text = "The service is temporarily unavailable. Please retry shortly."
                    raise Unavailable(text, retry_after_ms=FULL_RETRY_AFTER_MS) from error
                await asyncio.sleep(PAUSE_S)
            else:
                self._stored(attempt, sequence)
                return

    async def _publish_once(self, attempt: Attempt, message: jobs.Publication, timeout_s: float) -> int:
        try:
            return await self._queue.publish(message, timeout_s=timeout_s)
        except QueueMissing:
            await self._queue.ensure(attempt.pool, attempt.job.tier)
            raise

    def _stored(self, attempt: Attempt, sequence: int) -> None:
        attempt.sequence = sequence
        attempt.published_at = self._clock.monotonic()


def _message(attempt: Attempt) -> jobs.Publication:
    job = attempt.job
    attempt.publications += 1
    return jobs.publication(
        attempt.pool,
        job.tier,
        job.tenant,
        wire.encode(job),
        # All tries of one publication have one id, so that a try whose answer was lost is not stored twice.
        msg_id=f"{job.request}:{job.attempt}:{attempt.publications}",
        ttl_s=math.ceil(job.wait_ms / 1000) + TTL_SLACK_S,
    )


def _decided(attempt: Attempt) -> None:
    assert attempt.publishing is not None, "it was begun"
    attempt.publishing.set_result(None)


def _full(error: QueueRefused) -> QueueFull:
    whose = "Your" if error.tenant_full else "The"
    return QueueFull(f"{whose} request queue is full. Please retry shortly.", retry_after_ms=FULL_RETRY_AFTER_MS)
