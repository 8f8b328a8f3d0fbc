"""Who is served over real queues: tenants of a tier alike, by tokens; urgent jobs at once; less urgent ones a share."""

import asyncio
import contextlib
from collections import Counter

import msgspec

from shared import cards, wire
from shared.jobs import JobQueue
from tests import services
from tests.integration.fleet import (
    CONTEXT,
    TOY,
    Dispatcher,
    Fleet,
    fleet,
    gateway,
    job,
    opened,
    read,
    ready,
    tokens,
    toy_engine,
    until,
    usage,
)
from worker.engine.request import EngineRequest, SamplingParams

URGENT_S_MAX = 60.0  # a limit of correctness on any machine; how long it takes is measured elsewhere


async def all_queued(dispatcher: Dispatcher, count: int) -> None:
    """Until so many jobs wait, so that what is served does not depend on who came first."""
    queue = JobQueue(dispatcher.bus)
    async with asyncio.timeout(60):
        while True:
            waiting = [await queue.waiting("default", tier) for tier in (0, 1, 2)]
            if sum(sum(look.jobs.values()) for look in waiting) == count:
                return
            await asyncio.sleep(0.02)


async def known_model(workers: Fleet, dispatcher: Dispatcher) -> None:
    """The gateway knows the model and its queues, and nobody serves them."""
    worker = workers.start()
    await ready(dispatcher)
    await worker.drain()


def jain(shares: list[int]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


async def test_twenty_tenants_nineteen_with_full_queues_are_served_alike(nats_server: services.NatsServer) -> None:
    """Their jobs differ in length by a factor of three, so that turns alone would give a Jain index of 0.86."""
    work_tokens = 6_000
    flooding, modest = [f"flood-{number}" for number in range(19)], "modest"
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, no_worker_s=60) as dispatcher:
        await known_model(workers, dispatcher)
        digest, _ = cards.pack(TOY)
        served = Counter[str]()
        enough = asyncio.Event()

        async def ask(tenant: str, max_tokens: int) -> None:
            wanted = msgspec.structs.replace(job(dispatcher, tenant=tenant, max_tokens=max_tokens), card=digest)
            async with opened(dispatcher, wanted, wait_s=60) as stream:
                served[tenant] += 5
                while chunks := await stream.next():
                    served[tenant] += len(tokens(chunks))
                    if served.total() >= work_tokens:
                        enough.set()

        async def ask_again_and_again() -> None:
            while True:
                await ask(modest, 20)

        lengths = [15 * (1 + number % 3) for number in range(19)]
        asking = [
            asyncio.create_task(ask(tenant, length))
            for tenant, length in zip(flooding, lengths, strict=True)
            for _ in range(45 * 20 // length)
        ]
        asking += [asyncio.create_task(ask_again_and_again()) for _ in range(4)]
        await all_queued(dispatcher, len(asking))
        workers.start(step_us=500, sequences_max=8)
        await asyncio.wait_for(enough.wait(), 60)
        shares = [served[tenant] for tenant in [*flooding, modest]]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
    assert jain(shares) >= 0.95, shares


def alone(prompt: int, count: int, seed: int) -> list[int]:
    """The tokens that the toy model gives for a job of `fleet.job`, undisturbed."""
    engine, _ = toy_engine(step_us=0, oracle=True)
    sampling = SamplingParams(max_tokens=count, seed=seed)
    ids = list(range(1, prompt + 1)) if prompt < 64 else [1] * prompt
    engine.add(EngineRequest(id="r", prompts=(ids,), n=1, sampling=sampling, tier=0, tenant="t", salt=b""))
    said: list[int] = []
    while engine.has_work:
        said += [token for chunk in engine.step().chunks for token in chunk.ids]
    return said


class Reading:
    """One stream that is read in the background."""

    def __init__(self, dispatcher: Dispatcher, wanted: wire.Job) -> None:
        self.said: list[int] = []
        self._task = asyncio.create_task(self._read(dispatcher, wanted))

    async def _read(self, dispatcher: Dispatcher, wanted: wire.Job) -> None:
        async with opened(dispatcher, wanted) as stream:
            while chunks := await stream.next():
                self.said += tokens(chunks)

    async def say(self, count: int) -> None:
        """Wait for so many tokens more."""
        wanted = len(self.said) + count
        await until(lambda: len(self.said) >= wanted or self._task.done())
        assert not self._task.done()

    async def leave(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


async def test_an_urgent_job_takes_the_place_of_a_less_urgent_one_which_goes_on_later(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sequences_max=2, step_us=5_000, oracle=True)
        await ready(dispatcher)
        late = [job(dispatcher, tier=2, max_tokens=CONTEXT, seed=seed) for seed in (1, 2)]
        readings = [Reading(dispatcher, wanted) for wanted in late]
        for reading in readings:
            await reading.say(20)
        assert worker.link.custody.stats.running == 2, "the worker is not full"

        async with asyncio.timeout(URGENT_S_MAX), opened(dispatcher, job(dispatcher, max_tokens=10)) as urgent:
            assert len(tokens(await read(urgent))) == 10

        for reading, seed in zip(readings, (1, 2), strict=True):
            await reading.say(20)
            await reading.leave()
            assert reading.said[:1_000] == alone(5, 1_000, seed)[: len(reading.said)]
        events = {event.request: event for event in await usage(nats_server.url, expected=3)}
        assert sum(events[wanted.request].preemptions for wanted in late) == 1
        assert worker.link.custody.stats.preemptions_total == 1


async def test_a_full_worker_leaves_an_urgent_job_to_one_with_room(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url, hesitate_s=60) as workers, gateway(nats_server.url) as dispatcher:
        full = workers.start(sequences_max=1, step_us=5_000)
        await ready(dispatcher)
        reading = Reading(dispatcher, job(dispatcher, tier=2, max_tokens=CONTEXT))
        await reading.say(5)

        async def ask() -> str:
            async with opened(dispatcher, job(dispatcher), wait_s=60) as stream:
                await read(stream)
                return stream.worker

        urgent = asyncio.create_task(ask())
        await all_queued(dispatcher, 1)
        for _ in range(3):
            full.link.intake.look()
            await asyncio.sleep(0.1)
        assert not urgent.done(), "it was taken though it is younger than the hesitation"
        free = workers.start()
        assert await urgent == free.link.worker
        assert full.link.custody.stats.preemptions_total == 0
        await reading.leave()


async def test_an_urgent_job_takes_the_blocks_of_less_urgent_ones(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(blocks=1 + 256, step_us=15_000, oracle=True)  # 4,096 tokens
        await ready(dispatcher)
        late = [
            job(dispatcher, tenant=f"late-{seed}", tier=2, prompt=1_000, max_tokens=1_000, seed=seed) for seed in (1, 2)
        ]
        readings = [Reading(dispatcher, wanted) for wanted in late]
        for reading in readings:
            await reading.say(20)

        urgent_job = job(dispatcher, prompt=2_500, max_tokens=10)
        async with asyncio.timeout(URGENT_S_MAX), opened(dispatcher, urgent_job) as urgent:
            assert len(tokens(await read(urgent))) == 10

        for reading, seed in zip(readings, (1, 2), strict=True):
            await reading.say(20)
            await reading.leave()
            assert reading.said == alone(1_000, 1_000, seed)[: len(reading.said)]
        events = {event.request: event for event in await usage(nats_server.url, expected=3)}
        assert sum(events[wanted.request].preemptions for wanted in late) >= 1
        assert events[urgent_job.request].preemptions == 0
        await until(lambda: worker.link.custody.stats.blocks_free == worker.link.custody.stats.blocks_total)


async def test_less_urgent_jobs_get_the_floor_share_though_urgent_ones_never_end(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, no_worker_s=60) as dispatcher:
        await known_model(workers, dispatcher)
        digest, _ = cards.pack(TOY)
        order: list[int] = []

        async def ask(tier: int) -> None:
            wanted = msgspec.structs.replace(job(dispatcher, tier=tier, max_tokens=20), card=digest)
            async with opened(dispatcher, wanted, wait_s=60) as stream:
                await read(stream)
            order.append(tier)

        # Each job is 45 weighted tokens: the first late one is owed its turn after 90 urgent ones or so.
        asking = [asyncio.create_task(ask(tier)) for tier in [0] * 200 + [2] * 8]
        await all_queued(dispatcher, len(asking))
        workers.start(sequences_max=4, step_us=500, floor_share=0.25)
        await asyncio.gather(*asking)
        assert order[:20] == [0] * 20, "nothing was owed yet"
        assert order[-40:] == [0] * 40, "late ones waited for the last urgent ones"


async def test_a_tier_that_is_owed_its_share_gets_one_place_of_many(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, no_worker_s=60) as dispatcher:
        await known_model(workers, dispatcher)
        digest, _ = cards.pack(TOY)
        order: list[int] = []

        async def ask(tier: int) -> None:
            wanted = msgspec.structs.replace(job(dispatcher, tier=tier), card=digest)
            async with opened(dispatcher, wanted, wait_s=60) as stream:
                order.append(tier)
                await read(stream)

        asking = [asyncio.create_task(ask(tier)) for tier in [0] * 8 + [2] * 8]
        await all_queued(dispatcher, len(asking))
        worker = workers.start(sequences_max=8, floor_share=0.25)
        for tier in (0, 2):
            worker.service.arrived(tier, "before")
        worker.service.charge(0, "before", input_tokens=10_000)
        await asyncio.gather(*asking)
        assert sorted(order[:8]) == [0] * 7 + [2]
