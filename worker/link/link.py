"""One worker's end of the protocol: everything between NATS and the engine, started and stopped in order.

Owns the wiring of this package and the loops that none of its parts owns. Invariant: stopping is starting reversed:
claims stop, held attempts end, their bills become durable, the last frames are sent, then the connection closes. A
worker whose runner is broken stops by itself, in the same order.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from shared import cards, log, subjects, tasks, wire
from shared.bus import Bus, BusError
from shared.clock import Clock, SystemClock
from shared.jobs import JobQueue
from shared.trace import Off, Tracer
from shared.usage import UsagePublisher
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.runner import RunnerBroken
from worker.engine.service import Service
from worker.link.beat import Beats
from worker.link.claim_order import ClaimOrder
from worker.link.custody import Custody
from worker.link.intake import Intake, Where
from worker.link.limits import LinkLimits
from worker.link.load import worker_load
from worker.link.outbox import Outbox
from worker.link.room import Room
from worker.link.speed import Speed

SHUTDOWN_WAIT_S = 5.0  # for the ends of attempts aborted at the end of a drain, and for the engine's last step


class Link:
    """`run` serves until `stop` is set, then drains. `worker` and `incarnation` are unique to this process; `service`
    has the counters that the engine charges.
    """

    def __init__(
        self,
        *,
        nats_url: str,
        worker: str,
        incarnation: str,
        engine: Engine,
        config: EngineConfig,
        card: wire.ModelCard,
        tiers: tuple[int, ...],
        service: Service,
        limits: LinkLimits | None = None,
        clock: Clock | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.limits = limits or LinkLimits()
        self.worker = worker
        self._incarnation = incarnation
        self._card = card
        self._tiers = tiers
        self._config = config
        self._floor_share = service.floor_share
        self._digest, self._card_data = cards.pack(card)
        self._log = log.get("link").bind(worker=worker)
        clock = clock or SystemClock()
        self.bus = Bus(nats_url, name=worker, role="worker")
        self._queue = JobQueue(self.bus)
        self.usage = UsagePublisher(self.bus)
        self.outbox = Outbox(self.bus, worker, self.limits, clock)
        self._beats = Beats(
            self.bus, worker, state=self._beat, heard=self.outbox.heard, limits=self.limits, clock=clock
        )
        room = Room(config, engine.stats())
        self.tracer = tracer or Off()
        self.custody = self._custody(engine, room, clock)
        self.intake = self._intake(room, service, clock)
        self._draining = False
        self._broken: RunnerBroken | None = None
        self._broke = asyncio.Event()
        self.custody.on_broken = self._on_broken

    def _custody(self, engine: Engine, room: Room, clock: Clock) -> Custody:
        prompt_tokens_min = max(1, min(self._config.tokens_per_step, self._config.tokens_beside_decodes) // 2)
        return Custody(
            worker=self.worker,
            pool=self._card.pool,
            engine=engine,
            room=room,
            speed=Speed(prompt_tokens_min),
            outbox=self.outbox,
            usage=self.usage,
            room_changed=self._room_changed,
            limits=self.limits,
            clock=clock,
            tracer=self.tracer,
        )

    def _intake(self, room: Room, service: Service, clock: Clock) -> Intake:
        return Intake(
            bus=self.bus,
            queue=self._queue,
            where=Where(pool=self._card.pool, tiers=self._tiers, card=self._digest),
            room=room,
            order=ClaimOrder(service),
            slow=self._slow,
            alive=self._beats.alive,
            claimed=self.custody.claimed,
            limits=self.limits,
            clock=clock,
        )

    @property
    def ready(self) -> bool:
        """Claiming, as far as we know."""
        return self.bus.ready and not self._draining and self.fault is None

    @property
    def fault(self) -> str | None:
        """Why nothing can be computed, if so. Safe to call from any thread."""
        if self._broken is not None:
            return str(self._broken)
        return f"a step has taken over {self.limits.step_s_max:g} s" if self._hangs else None

    @property
    def _hangs(self) -> bool:
        return self.custody.thread.step_age_s() > self.limits.step_s_max

    @property
    def _shutdown_wait_s(self) -> float:
        return 0.0 if self._hangs else SHUTDOWN_WAIT_S

    def _slow(self) -> bool:
        return self.custody.thread.step_age_s() > self.limits.step_slow_s

    async def run(self, stop: asyncio.Event, *, drain_s: float) -> None:
        """Raises whatever ends the engine's thread or one of the loops; RunnerBroken once everything that was held has
        ended.
        """
        self.bus.on_connect(self._ensure)
        self.bus.on_connect(self._beats.reconnected)
        self.bus.on_connect(self.outbox.reconnected)
        self.custody.thread.start()
        try:
            async with self.bus, self.usage:
                await self.bus.subscribe(subjects.cancel_subject(self.worker), self._on_cancel)
                await self._beats.start()
                loops = [
                    asyncio.create_task(self.outbox.run(), name="outbox"),
                    asyncio.create_task(self._beats.run(), name="beats"),
                    asyncio.create_task(self._every(self.limits.roll_s, self._roll), name="rolls"),
                    asyncio.create_task(self._every(self.limits.beat_s, self._sweep), name="sweep"),
                    asyncio.create_task(self._every(self.limits.ensure_s, self._ensure_again), name="ensure"),
                    asyncio.create_task(self._watch_engine(), name="engine"),
                ]
                claiming = asyncio.create_task(self.intake.run(), name="intake")
                try:
                    await _unless_failed(_first(stop, self._broke), [*loops, claiming])
                    await _unless_failed(self._drain(claiming, drain_s), loops)
                finally:
                    await tasks.stop([*loops, claiming])
        finally:
            if not await self.custody.thread.stop(self._shutdown_wait_s):
                self._log.error("engine.hangs", step_age_s=round(self.custody.thread.step_age_s()))
        if self._broken is not None:
            raise self._broken

    async def _drain(self, claiming: asyncio.Task[None], drain_s: float) -> None:
        self._log.info("worker.draining", attempts=len(self.custody.attempts))
        self._draining = True
        self.intake.stop()
        await self._beats.beat()
        await claiming  # a claim in progress is completed
        if not await self.custody.wait_empty(drain_s):
            self._log.warning("worker.aborting", attempts=len(self.custody.attempts))
            self.custody.abort_all()
            await self.custody.wait_empty(self._shutdown_wait_s)
        missing = await self.usage.drain(self.limits.usage_drain_s)
        await self._beats.beat()  # reports the last bills
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_WAIT_S):
                await self.outbox.flush()
        self._log.info("worker.drained", bills_missing=missing)

    # -- the loops' bodies

    def _room_changed(self) -> None:
        self.intake.room_changed()

    def _on_broken(self, error: RunnerBroken) -> None:
        """Everything that the engine held has ended, and so will whatever is claimed until claims stop."""
        self._broken = error
        self._broke.set()

    async def _roll(self) -> None:
        for gateway in {*self._beats.gateways(), *self.custody.attempts.gateways()}:
            self.outbox.add(gateway, self.custody.attempts.roll(gateway))

    async def _sweep(self) -> None:
        for gateway in self.custody.attempts.gateways():
            if not self._beats.alive(gateway):
                self.custody.abort_gateway(gateway)
        self.custody.abort_overdue()
        for gateway in self._beats.forgotten():
            self.outbox.forget(gateway)

    async def _watch_engine(self) -> None:
        assert self.custody.thread.failed is not None
        await asyncio.shield(self.custody.thread.failed)

    async def _every(self, period_s: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period_s)
            await work()

    # -- NATS

    async def _ensure(self) -> None:
        """After every connect and now and then: restore what the server has lost."""
        await self.usage.ensure()
        for tier in self._tiers:
            await self._queue.ensure(self._card.pool, tier)
        await cards.ensure_bucket(self.bus)
        await cards.put(self.bus, self._digest, self._card_data)
        self.intake.look()

    async def _ensure_again(self) -> None:
        """Restore what was removed while the connection stood: gateways that start later would never get our card."""
        if not self.bus.ready:
            return  # the bus calls `_ensure` itself after a reconnect
        try:
            await self._ensure()
        except BusError as error:
            self._log.warning("link.ensure_failed", error=repr(error))

    def _on_cancel(self, _: str, data: bytes) -> None:
        try:
            self.custody.cancel(wire.decode(data, wire.Cancel))
        except msgspec.DecodeError as error:
            self._log.error("cancel.unreadable", error=str(error))

    def _beat(self) -> wire.WorkerBeat:
        stats = self.custody.stats
        return wire.WorkerBeat(
            worker=self.worker,
            incarnation=self._incarnation,
            pool=self._card.pool,
            model=self._card.name,
            card=self._digest,
            ready=self.ready,
            draining=self._draining,
            running=stats.running,
            waiting=stats.waiting,
            blocks_free=stats.blocks_free,
            blocks_total=stats.blocks_total,
            step_age_ms=round(self.custody.thread.step_age_s() * 1000),
            healthy=not self._hangs,
            load=worker_load(
                stats,
                self._config,
                self.custody.speed,
                prompt_tokens_left=self.custody.attempts.prompt_tokens_left(),
                floor_share=self._floor_share,
            ),
            bills=self.custody.bill_counts.bills,
            billed_prompt_tokens=self.custody.bill_counts.prompt_tokens,
            billed_completion_tokens=self.custody.bill_counts.completion_tokens,
        )


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.stop(waiting)


async def _unless_failed(work: Coroutine[Any, Any, Any], loops: list[asyncio.Task[None]]) -> None:
    """Wait for `work`, or raise what ended one of the loops.

    Not a TaskGroup: a cancellation that nats-py swallows would leave it waiting for ever.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task, *loops], return_when=asyncio.FIRST_COMPLETED)
        for loop in loops:
            if loop.done():
                loop.result()
                raise RuntimeError(f"the task {loop.get_name()!r} ended")
        await task
    finally:
        await tasks.stop([task])
