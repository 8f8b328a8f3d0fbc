"""Claims: every job to exactly one worker, to one with room, in turns between tenants."""

import asyncio

import msgspec

from shared import subjects, wire
from shared.bus import Bus, BusUnavailable
from shared.jobs import JobQueue, publication
from tests import services
from tests.integration.fleet import (
    CONTEXT,
    PATIENCE_S,
    card,
    fleet,
    gateway,
    job,
    opened,
    published,
    read,
    ready,
    tokens,
    until,
    usage,
)


async def test_two_workers_share_the_work_and_nothing_runs_twice(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        both = [workers.start(sequences_max=4), workers.start(sequences_max=4)]
        await ready(dispatcher, workers=2)
        served: list[str] = []

        async def ask() -> None:
            async with opened(dispatcher, job(dispatcher, max_tokens=20)) as stream:
                assert len(tokens(await read(stream))) == 20
                served.append(stream.worker)

        await asyncio.gather(*(ask() for _ in range(40)))
        assert len(set(served)) == 2
        events = await usage(nats_server.url, expected=40)
        assert len(events) == 40
        custodies = [worker.link.custody for worker in both]
        generated = sum(custody.stats.generated_tokens_total for custody in custodies)
        # A claim whose answer took too long may be begun by two; one of them is told to stop, and bills nothing.
        assert generated - sum(custody.wasted_tokens_total for custody in custodies) == 40 * 20, "something ran twice"


async def test_a_full_worker_leaves_jobs_in_the_queue(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sequences_max=2)
        await ready(dispatcher)
        peak = 0

        async def ask() -> None:
            nonlocal peak
            async with opened(dispatcher, job(dispatcher, max_tokens=30)) as stream:
                held = [attempt for attempt in worker.link.custody.attempts.all() if not attempt.ending]
                peak = max(peak, len(held))
                await read(stream)

        await asyncio.gather(*(ask() for _ in range(12)))
        assert peak <= 3  # two run, and one may have been claimed to take the next place


async def test_tenants_take_turns(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(sequences_max=1)
        await ready(dispatcher)
        order: list[str] = []

        async def ask(tenant: str) -> None:
            async with opened(dispatcher, job(dispatcher, tenant=tenant, max_tokens=5)) as stream:
                order.append(tenant)
                await read(stream)

        async with opened(dispatcher, job(dispatcher, tenant="first", max_tokens=CONTEXT)) as blocker:
            await blocker.next()
            flood = [asyncio.create_task(ask("flood")) for _ in range(10)]
            await published(dispatcher, 11)
            modest = [asyncio.create_task(ask("modest")) for _ in range(2)]
            await published(dispatcher, 13)
        await asyncio.gather(*flood, *modest)
        assert max(order.index("modest"), len(order) - 1 - order[::-1].index("modest")) <= 5


async def test_the_more_urgent_tier_is_claimed_first(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(sequences_max=1)
        await ready(dispatcher)
        order: list[int] = []

        async def ask(tier: int) -> None:
            async with opened(dispatcher, job(dispatcher, tier=tier, max_tokens=5)) as stream:
                order.append(tier)
                await read(stream)

        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as blocker:
            await blocker.next()
            late = [asyncio.create_task(ask(2)) for _ in range(4)]
            await published(dispatcher, 4, tier=2)
            urgent = [asyncio.create_task(ask(0)) for _ in range(4)]
            await published(dispatcher, 5)
        await asyncio.gather(*late, *urgent)
        assert order == [0] * 4 + [2] * 4


async def test_a_job_for_another_model_card_is_left_alone(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(card=card("one"))
        await ready(dispatcher)
        foreign = msgspec.structs.replace(job(dispatcher, model="one"), card="f" * 64)
        queue = JobQueue(dispatcher.bus)
        sequence = await queue.publish(
            publication("default", 0, foreign.tenant, wire.encode(foreign), msg_id="foreign", ttl_s=60), timeout_s=30
        )
        # Ours is behind it, on the same subject, and is found all the same.
        async with opened(dispatcher, job(dispatcher, model="one")) as stream:
            await read(stream)
        assert await queue.presence("default", 0, sequence) == "queued"


async def test_each_model_goes_to_its_own_workers(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        one, two = workers.start(card=card("one")), workers.start(card=card("two"))
        await until(lambda: [info.name for info in dispatcher.fleet.models()] == ["one", "two"])
        for name, worker in (("one", one), ("two", two)):
            async with opened(dispatcher, job(dispatcher, model=name)) as stream:
                await read(stream)
                assert stream.worker == worker.link.worker


async def test_what_is_no_job_is_dropped(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await ready(dispatcher)
        queue = JobQueue(dispatcher.bus)
        sequence = await queue.publish(
            publication("default", 0, "tenant", b"junk", msg_id="junk", ttl_s=60), timeout_s=30
        )
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        await until_gone(queue, sequence)


async def test_a_job_of_a_dead_gateway_is_dropped_without_a_bill(nats_server: services.NatsServer) -> None:
    async with (
        fleet(nats_server.url, gateway_silence_s=0.5, beat_s=0.05) as workers,
        gateway(nats_server.url, beat_s=0.05) as dispatcher,
        Bus(nats_server.url, name="test", role="gateway") as bus,
    ):
        worker = workers.start(sequences_max=1)
        await ready(dispatcher)
        orphan = msgspec.structs.replace(job(dispatcher), gateway="gw-dead")
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
            await stream.next()
            await until(lambda: not worker.link._beats.alive("gw-dead"))  # the first look makes it known
            queue = JobQueue(bus)
            await bus.wait_ready(60)
            sequence = await queue.publish(
                publication("default", 0, orphan.tenant, wire.encode(orphan), msg_id="orphan", ttl_s=60), timeout_s=30
            )
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        await until_gone(queue, sequence)
        events = await usage(nats_server.url, expected=2)
        assert orphan.request not in {event.request for event in events}


async def test_one_job_that_does_not_fit_yet_waits_inside_and_is_not_overtaken(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(blocks=33, step_us=10_000)  # 512 tokens
        await ready(dispatcher)
        order: list[str] = []

        async def ask(name: str, prompt: int, max_tokens: int) -> None:
            wanted = job(dispatcher, tenant=name.split(maxsplit=1)[0], prompt=prompt, max_tokens=max_tokens)
            async with opened(dispatcher, wanted) as stream:
                await stream.next()
                order.append(name)
                await read(stream)

        first = job(dispatcher, tenant="first", prompt=200, max_tokens=300)
        async with opened(dispatcher, first) as running:
            await running.next()
            large = asyncio.create_task(ask("large", 400, 20))
            await until(lambda: worker.link.custody.stats.waiting == 1)  # inside, in front of the small ones
            small = [asyncio.create_task(ask(f"small {number}", 20, 20)) for number in range(5)]
            await published(dispatcher, 7)
        await asyncio.gather(large, *small)
        assert order[0] == "large"


async def test_a_queue_that_a_gateway_needs_first_is_created(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(tiers=(1,))
        await ready(dispatcher)
        waiting = asyncio.create_task(_ask(dispatcher, job(dispatcher, tier=0)))
        await asyncio.sleep(0.3)
        workers.start(tiers=(0,))
        await asyncio.wait_for(waiting, PATIENCE_S)
        names = await dispatcher.bus.jetstream().stream_info(subjects.jobs_stream_name("default", 0))
        assert names.state.messages == 0


async def test_a_claim_whose_answer_was_lost_with_the_connection_is_kept(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        queue = worker.link.intake._queue
        take, taken = queue.take, []

        async def take_and_tell_nobody(pool: str, tier: int, sequence: int) -> str:
            taken.append(await take(pool, tier, sequence))
            if len(taken) == 1:
                raise BusUnavailable("the connection broke")
            return taken[-1]

        queue.take = take_and_tell_nobody
        await asyncio.wait_for(_ask(dispatcher, job(dispatcher)), PATIENCE_S)
        await asyncio.wait_for(_ask(dispatcher, job(dispatcher)), PATIENCE_S)
        assert taken == ["taken", "taken"]
        assert len(await usage(nats_server.url, expected=2)) == 2


async def until_gone(queue: JobQueue, sequence: int) -> None:
    """What is dropped may still be on its way out when the job behind it has ended."""
    async with asyncio.timeout(PATIENCE_S):
        while await queue.presence("default", 0, sequence) != "gone":
            await asyncio.sleep(0.01)


async def _ask(dispatcher, wanted) -> None:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)
