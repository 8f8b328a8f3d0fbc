"""Puts an attempt into its queue: when it is opened, and again when a NATS restart forgot it.

Owns the retries and what each refusal means to the client.
"""

import asyncio
import math
from typing import Final

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.limits import DispatchLimits
from gateway.errors import BodyTooLarge, QueueFull, Unavailable
from shared import wire
from shared.bus import Bus, BusTooLarge, BusUnavailable
from shared.clock import Clock
from shared.jobs import JobQueue, QueueMissing, QueueRefused

TTL_SLACK_S: Final = 10  # the gateway takes its job back at the deadline; the stream's own expiry only sweeps up
TRY_S: Final = 1.0
PAUSE_S: Final = 0.05
FULL_RETRY_AFTER_MS: Final = 1000


class Publication:
    def __init__(self, bus: Bus, queue: JobQueue, limits: DispatchLimits, clock: Clock) -> None:
        self._bus = bus
        self._queue = queue
        self._limits = limits
        self._clock = clock

    async def publish(self, attempt: Attempt) -> None:
        """Queue the job and note its sequence number. Raises QueueFull and BodyTooLarge: it is not queued;
        Unavailable: it may be.
        """
        attempt.publications += 1
        data = wire.encode(attempt.job)
        deadline = self._clock.monotonic() + self._limits.nats_wait_s
        while True:
            left_s = deadline - self._clock.monotonic()
            try:
                await self._bus.wait_ready(max(left_s, 0.0))
                attempt.sequence = await self._publish_once(attempt, data, max(PAUSE_S, min(left_s, TRY_S)))
            except QueueRefused as error:
                whose = "Your" if error.tenant_full else "The"
                message = f"{whose} request queue is full. Please retry shortly."
                raise QueueFull(message, retry_after_ms=FULL_RETRY_AFTER_MS) from None
            except BusTooLarge:
                raise BodyTooLarge(f"The request is too large to dispatch: {len(data)} bytes.") from None
            except BusUnavailable as error:
                if self._clock.monotonic() >= deadline:
                    message = "The service is temporarily unavailable. Please retry shortly."
                    raise Unavailable(message, retry_after_ms=FULL_RETRY_AFTER_MS) from error
                await asyncio.sleep(PAUSE_S)
            else:
                attempt.published_at = self._clock.monotonic()
                return

    async def _publish_once(self, attempt: Attempt, data: bytes, timeout_s: float) -> int:
        job = attempt.job
        try:
            return await self._queue.publish(
                attempt.pool,
                job.tier,
                job.tenant,
                data,
                # One id for all tries of one publication, so that a try whose answer was lost is not stored twice.
                msg_id=f"{job.request}:{job.attempt}:{attempt.publications}",
                ttl_s=math.ceil(job.wait_ms / 1000) + TTL_SLACK_S,
                timeout_s=timeout_s,
            )
        except QueueMissing:
            await self._queue.ensure(attempt.pool, job.tier)
            raise
