"""Claims jobs that this worker can start: it hears of them or lists the queues, chooses those of the tenants whose turn
it is, and deletes each from its stream.

Owns when to look and what to take. Does not know what happens to a claimed job. Invariant: a job is handed on only
after its delete succeeded, which happens to one worker alone.

Late binding: it looks only while there is room, and takes only what fits. A job that does not fit now is left to other
workers for a moment, then taken: to start at once if less urgent work can give way, else to wait inside, one at a time,
so that it is not overtaken for ever. A full worker looks now and then at the tiers that may preempt its work.

A round's deletes are asked for as its jobs are chosen, and what was chosen has its room until the answer: jobs that
came together start together.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import msgspec

from shared import log, subjects, wire
from shared.bus import Bus, BusUnavailable, Interest
from shared.clock import Clock
from shared.jobs import LONG_AGO, JobQueue, Queued, QueueMissing
from worker.link.attempts import key_of
from worker.link.claim_order import ClaimOrder, TierOrder
from worker.link.limits import LinkLimits
from worker.link.look import Look
from worker.link.room import Room
from worker.link.wakes import Wakes

NextJob = wire.Job | Literal["none", "no room"]


@dataclass(slots=True, frozen=True)
class Where:
    """Which queues are served, and for which model card."""

    pool: str
    tiers: tuple[int, ...]
    card: str


@dataclass(slots=True, frozen=True)
class Chosen:
    """A job that is to be claimed."""

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
        order: ClaimOrder,
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
        self._order = order
        self._slow = slow
        self._alive = alive
        self._claimed = claimed
        self._limits = limits
        self._clock = clock
        self._hesitation = timedelta(seconds=limits.hesitate_s)
        self._wake = asyncio.Event()
        self._wakes = Wakes()
        self._everywhere = True  # look at all queues next time
        self._asked_at = clock.monotonic()  # when all queues were last asked
        self._interests: list[Interest] = []
        self._backlog = True  # there may be jobs that we saw no room for, or were not told of
        self._claims: list[asyncio.Task[None]] = []  # of the present round
        self._in_doubt: list[Chosen] = []  # claims whose outcome was not told
        self._stopped = False
        self._log = log.get("intake")
        self.races_lost_total = 0

    def look(self) -> None:
        """There may be something to claim anywhere."""
        self._everywhere = True
        self._wake.set()

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
                await self._listen(wanted=self._room.open and not self._slow())
                if self._bus.ready:
                    await self._resolve_doubt()
                    await self._claim_all()
            except BusUnavailable as error:
                self._backlog = True
                self._log.warning("intake.unavailable", error=str(error))
            try:
                async with asyncio.timeout(self._limits.hesitate_s if self._backlog else self._limits.poll_s):
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
                self._interests.append(await self._bus.subscribe_headed(subject, self._on_wake, queue=queue))
        elif not wanted and self._interests:
            self._backlog = True
            while self._interests:
                await self._interests.pop().cancel()

    def _on_wake(self, subject: str, data: bytes, headers: bytes) -> None:
        if not self._wakes.note(subject, data, headers):
            self._everywhere = True
        self._wake.set()

    async def _claim_all(self) -> None:
        """One round. What comes into a queue meanwhile brings its own wake.

        With nothing left over from before, the wakes say all there is to know; otherwise the queues are asked, and
        every `poll_s` however many wakes come: one may have been lost, and they never tell who waits no more.
        """
        tiers = [] if self._slow() else [tier for tier in self._where.tiers if self._room.open_to(tier)]
        now = self._clock.monotonic()
        overdue = now - self._asked_at >= self._limits.poll_s
        whole = overdue or self._everywhere or self._backlog or not self._room.open
        self._everywhere = False
        told = self._wakes.take()
        if whole:
            looks = await asyncio.gather(*(self._ask(tier) for tier in tiers))
            self._asked_at = now
        else:
            looks = [Look.heard(tier, subjects.of_tier(told, self._where.pool, tier)) for tier in tiers]
        self._backlog = len(tiers) < len(self._where.tiers)
        try:
            await self._choose([look for look in looks if look.jobs])
        finally:
            await self._claimed_all()
        for look in looks:
            for subject, sequence in look.passed.items():
                self._wakes.seen(subject, sequence)

    async def _claimed_all(self) -> None:
        """Wait for the answers to this round's deletes: the next round must not choose the same again. Raises
        BusUnavailable if one has none.
        """
        claims, self._claims = self._claims, []
        for outcome in await asyncio.gather(*claims, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _choose(self, looks: list[Look]) -> None:
        """A tier that is owed its floor share comes first, with one job: what that costs is not yet charged. Then come
        all by urgency. What comes first and does not fit is overtaken by nothing less urgent.
        """
        for look in looks:
            self._order.waiting(look.tier, look.jobs.keys())
        orders = {look.tier: self._order.of(look.tier, look.jobs) for look in looks}
        owed = [look for look in looks if self._order.owed(look.tier)]
        left: int | None = None
        for look, most in [*((look, 1) for look in owed), *((look, subjects.JOBS_MSGS_MAX) for look in looks)]:
            if left is not None and look.tier > left:
                continue
            if not await self._choose_of_tier(look, orders[look.tier], most):
                left = look.tier
                self._backlog = True

    async def _ask(self, tier: int) -> Look:
        """All that waits in a tier's queue."""
        try:
            waiting = await self._queue.waiting(self._where.pool, tier)
        except QueueMissing:
            await self._queue.ensure(self._where.pool, tier)
            return Look(tier, {}, LONG_AGO)
        self._order.only(tier, {*map(subjects.tenant_of, waiting.jobs), *self._room.promised_tenants(tier)})
        return Look.asked(tier, waiting)

    async def _choose_of_tier(self, look: Look, order: TierOrder, most: int) -> bool:
        """Choose as long as there is room, one job at a time, of whoever's turn it is. False when a job has no room."""
        while most > 0 and (tenant := order.first()) is not None:
            if not self._room.open_to(look.tier) or self._stopped:
                return False
            job = await self._next_job(look, subjects.job_subject(self._where.pool, look.tier, tenant))
            if job == "no room":
                return False
            if job == "none":
                order.exhausted()
            else:
                self._order.took(order, tenant, job.prompt_tokens)
                most -= 1
        return True

    async def _next_job(self, look: Look, subject: str) -> NextJob:
        """Choose the oldest job on `subject` that is for us, and have it claimed."""
        for _ in range(self._limits.look_skips_max):
            queued = await self._oldest(look, subject)
            if queued is None:
                return "none"
            job = self._read(queued)
            if job is not None and job.card != self._where.card:
                look.passed[subject] = queued.seq
                continue  # for another revision: its own workers will take it
            wanted = job is not None and self._alive(job.gateway)
            if job is not None and wanted:
                old = look.at - queued.since >= self._hesitation
                if not (old or self._starts_now(job)):
                    return "no room"
            look.passed[subject] = queued.seq
            if job is not None and wanted:
                self._claim(Chosen(look.tier, queued.seq, job))
                return job
            await self._queue.take(self._where.pool, look.tier, queued.seq)  # nobody would hear the answer
        return "none"

    async def _oldest(self, look: Look, subject: str) -> Queued | None:
        """The first job that was not dealt with."""
        if look.told is not None:
            return look.first_told(subject)
        passed = look.passed.get(subject, 0)
        return await self._queue.oldest(self._where.pool, look.tier, subject, from_seq=passed + 1)

    def _starts_now(self, job: wire.Job) -> bool:
        return self._room.open and self._room.fits(self._room.need(job))

    def _claim(self, chosen: Chosen) -> None:
        """Have it deleted. Until that is answered, it has its room."""
        self._room.promise(key_of(chosen.job.request, chosen.job.attempt), chosen.job)
        self._claims.append(asyncio.create_task(self._take(chosen), name="claim"))

    async def _take(self, chosen: Chosen) -> None:
        job, taken = chosen.job, False
        try:
            taken = await self._queue.take(self._where.pool, chosen.tier, chosen.sequence) != "gone"
            self.races_lost_total += not taken
        except BusUnavailable:
            self._in_doubt.append(chosen)
            raise
        finally:
            if not taken:
                self._room.withdraw(key_of(job.request, job.attempt))
        if taken:
            self._claimed(job)

    async def _resolve_doubt(self) -> None:
        """The connection broke during a delete. If the job is gone, it was probably ours, and if another has it, the
        fence sorts it out. Left alone, it might be nobody's.
        """
        while self._in_doubt:
            doubt = self._in_doubt[-1]
            presence = await self._queue.presence(self._where.pool, doubt.tier, doubt.sequence)
            self._in_doubt.pop()
            if presence == "gone" and self._alive(doubt.job.gateway):
                self._room.promise(key_of(doubt.job.request, doubt.job.attempt), doubt.job)
                self._claimed(doubt.job)

    def _read(self, queued: Queued) -> wire.Job | None:
        """None for what is no job: it is taken out and dropped, or it would be read for ever."""
        try:
            return wire.decode(queued.data, wire.Job)
        except msgspec.DecodeError as error:
            self._log.error("job.unreadable", sequence=queued.seq, error=str(error))
            return None
