"""Claims jobs that this worker can start: a look at the queues, the oldest job of whoever's turn it is, a delete.

Owns when to look and whose turn it is. Knows nothing of what becomes of a claimed job. Invariant: a job is handed on
only after its delete succeeded, which happens to one worker alone.

Late binding: it looks only while there is room, and takes what fits into it. A job that does not fit now is left to
other workers for a moment, then taken to wait inside, one at a time, so that it is not overtaken for ever.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import msgspec

from shared import log, subjects, wire
from shared.bus import Bus, BusUnavailable, Interest
from shared.clock import Clock
from shared.jobs import JobQueue, Queued, QueueMissing
from worker.link.limits import LinkLimits
from worker.link.room import Room

Claim = Literal["claimed", "none", "no room"]


@dataclass(slots=True, frozen=True)
class Where:
    """Which queues are served, and for which model card."""

    pool: str
    tiers: tuple[int, ...]
    card: str


@dataclass(slots=True, frozen=True)
class Doubt:
    """A claim whose outcome was not told."""

    tier: int
    sequence: int
    job: wire.Job


class Intake:
    """`alive(gateway)` tells whether an answer would be heard; `slow()` whether the engine is in a step that will not
    end soon; `claimed(job)` takes the job over.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        queue: JobQueue,
        where: Where,
        room: Room,
        slow: Callable[[], bool],
        alive: Callable[[str], bool],
        claimed: Callable[[wire.Job], None],
        limits: LinkLimits,
        clock: Clock,
    ) -> None:
        self._bus = bus
        self._queue = queue
        self._where = where
        self._room = room
        self._slow = slow
        self._alive = alive
        self._claimed = claimed
        self._limits = limits
        self._clock = clock
        self._wake = asyncio.Event()
        self._woken: dict[str, int] = {}  # subject -> jobs that we were told of
        self._everywhere = True  # look at all queues next time
        self._interests: list[Interest] = []
        self._backlog = True  # there may be jobs that we saw no room for, or were not told of
        self._in_doubt: Doubt | None = None
        self._stopped = False
        self._served_at: dict[str, int] = {}  # subject -> number of the claim that last served it
        self._claims = 0
        self._hesitating: tuple[int, float] | None = None  # sequence number, since when
        self._log = log.get("intake")
        self.races_lost_total = 0

    def look(self) -> None:
        """There may be something to claim anywhere."""
        self._everywhere = True
        self._wake.set()

    @property
    def _may_claim(self) -> bool:
        return self._room.open and not self._slow()

    def room_changed(self) -> None:
        """There may be room for what had none. Called after every step, so it is silent when nothing waits outside."""
        if self._backlog and self._room.open:
            self.look()

    def stop(self) -> None:
        """Claim nothing more."""
        self._stopped = True
        self._wake.set()

    async def run(self) -> None:
        """Until stopped: look where a wake says, when room has come free, and everywhere now and then."""
        while not self._stopped:
            self._wake.clear()
            try:
                await self._listen(wanted=self._may_claim)
                if self._bus.ready:
                    await self._resolve_doubt()
                    await self._claim_all()
            except BusUnavailable as error:
                self._backlog = True
                self._log.warning("intake.unavailable", error=str(error))
            try:
                async with asyncio.timeout(self._limits.poll_s):
                    await self._wake.wait()
            except TimeoutError:
                self.look()
        await self._listen(wanted=False)

    async def _listen(self, *, wanted: bool) -> None:
        """Be in the groups that wakes are spread over only while there is room: a full worker would swallow them."""
        if wanted and not self._interests:
            queue = subjects.wake_queue(self._where.pool)
            for tier in self._where.tiers:
                subject = subjects.wake_filter(self._where.pool, tier)
                self._interests.append(await self._bus.subscribe(subject, self._on_wake, queue=queue))
        elif not wanted and self._interests:
            self._backlog = True
            while self._interests:
                await self._interests.pop().cancel()

    def _on_wake(self, subject: str, _: bytes) -> None:
        queued = subjects.job_subject_of_wake(subject)
        self._woken[queued] = self._woken.get(queued, 0) + 1
        self._wake.set()

    async def _claim_all(self) -> None:
        """One round. What comes into a queue meanwhile brings its own wake.

        With nothing left over from before, the wakes say all there is to know; otherwise the queues are asked.
        """
        if not self._may_claim:
            self._backlog = True
            return
        everywhere, self._everywhere = self._everywhere or self._backlog, False
        woken, self._woken = self._woken, {}
        if everywhere:
            waiting = await asyncio.gather(*(self._waiting(tier) for tier in self._where.tiers))
        else:
            waiting = [subjects.of_tier(woken, self._where.pool, tier) for tier in self._where.tiers]
        self._backlog = False
        for tier, counts in zip(self._where.tiers, waiting, strict=True):
            if not await self._claim_tier(tier, counts):
                self._backlog = True  # what comes first does not fit: nothing less urgent overtakes it
                return

    async def _waiting(self, tier: int) -> dict[str, int]:
        try:
            return await self._queue.waiting(self._where.pool, tier)
        except QueueMissing:
            await self._queue.ensure(self._where.pool, tier)
            return {}

    async def _claim_tier(self, tier: int, counts: dict[str, int]) -> bool:
        """Claim in turns, one job per tenant and round. False when the next job has no room."""
        while counts:
            for subject in sorted(counts, key=lambda name: self._served_at.get(name, 0)):
                if not self._room.open or self._stopped:
                    return False
                claim = await self._next_job(tier, subject)
                if claim == "no room":
                    return False
                counts[subject] -= 1
                if claim == "none" or counts[subject] <= 0:
                    del counts[subject]
        return True

    async def _next_job(self, tier: int, subject: str) -> Claim:
        """Claim the oldest job on `subject` that is for us: `claimed`, `none`, or `no room`."""
        from_seq = 1
        for _ in range(self._limits.look_skips_max):
            queued = await self._queue.oldest(self._where.pool, tier, subject, from_seq=from_seq)
            if queued is None:
                return "none"
            from_seq = queued.seq + 1
            job = self._read(queued)
            if job is not None and job.card != self._where.card:
                continue  # for another revision: its own workers will take it
            if job is not None and self._alive(job.gateway) and not self._has_room_for(job, queued.seq):
                return "no room"
            if not await self._take(tier, queued.seq, job):
                self.races_lost_total += 1
                continue
            if job is not None and self._alive(job.gateway):
                self._note_served(subject)
                self._claimed(job)
                return "claimed"
        return "none"

    async def _take(self, tier: int, sequence: int, job: wire.Job | None) -> bool:
        try:
            return await self._queue.take(self._where.pool, tier, sequence) != "gone"
        except BusUnavailable:
            if job is not None:
                self._in_doubt = Doubt(tier, sequence, job)
            raise

    async def _resolve_doubt(self) -> None:
        """The connection broke during a delete. If the job is gone, it was probably ours, and if another has it, the
        fence sorts it out. Left alone, it might be nobody's.
        """
        doubt = self._in_doubt
        if doubt is None:
            return
        presence = await self._queue.presence(self._where.pool, doubt.tier, doubt.sequence)
        self._in_doubt = None
        if presence == "gone" and self._alive(doubt.job.gateway):
            self._claims += 1
            self._claimed(doubt.job)

    def _read(self, queued: Queued) -> wire.Job | None:
        """None for what is no job: it is taken out and dropped, or it would be read for ever."""
        try:
            return wire.decode(queued.data, wire.Job)
        except msgspec.DecodeError as error:
            self._log.error("job.unreadable", sequence=queued.seq, error=str(error))
            return None

    def _has_room_for(self, job: wire.Job, sequence: int) -> bool:
        if self._room.fits(self._room.need(job)):
            return True
        now = self._clock.monotonic()
        if self._hesitating is None or self._hesitating[0] != sequence:
            self._hesitating = (sequence, now)
        return self._room.may_wait() and now - self._hesitating[1] >= self._limits.hesitate_s

    def _note_served(self, subject: str) -> None:
        self._claims += 1
        self._served_at.pop(subject, None)
        self._served_at[subject] = self._claims
        if len(self._served_at) > subjects.JOBS_MSGS_MAX:
            del self._served_at[next(iter(self._served_at))]
