"""What the job queues rely on in nats-server and nats-py, each fact pinned."""

import asyncio

import pytest

from shared import subjects
from shared.bus import Bus, BusTooLarge
from shared.jobs import JobQueue, QueueMissing, QueueRefused, publication
from tests import services
from tests.integration.fleet import until


async def connected(url: str) -> Bus:
    bus = Bus(url, name="test", role="gateway")
    await bus.__aenter__()
    await bus.wait_ready(60)
    return bus


async def publish(queue: JobQueue, tenant: str, number: int, data: bytes = b"job") -> int:
    return await queue.publish(
        publication("default", 0, tenant, data, msg_id=f"{tenant}:{number}", ttl_s=60), timeout_s=30
    )


async def test_a_job_is_taken_exactly_once(nats_server: services.NatsServer) -> None:
    buses = [await connected(nats_server.url) for _ in range(4)]
    queues = [JobQueue(bus) for bus in buses]
    await queues[0].ensure("default", 0)
    for number in range(50):
        sequence = await publish(queues[0], "tenant", number)
        results = await asyncio.gather(*(queue.take("default", 0, sequence) for queue in queues))
        assert sorted(results) == ["gone", "gone", "gone", "taken"]
    for bus in buses:
        await bus.__aexit__()


async def test_the_two_ways_of_being_full_are_told_apart(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        await bus.wait_ready(60)
        queue = JobQueue(bus)
        config = subjects.jobs_stream("default", 0)
        config.max_msgs, config.max_msgs_per_subject = 5, 3
        await bus.jetstream().add_stream(config)
        for number in range(3):
            await publish(queue, "greedy", number)
        with pytest.raises(QueueRefused) as own:
            await publish(queue, "greedy", 3)
        assert own.value.tenant_full
        for number in range(2):
            await publish(queue, "modest", number)
        with pytest.raises(QueueRefused) as everybodys:
            await publish(queue, "third", 0)
        assert not everybodys.value.tenant_full
        subject = subjects.job_subject("default", 0, "greedy")
        oldest = await queue.oldest("default", 0, subject)
        assert oldest is not None
        assert await queue.take("default", 0, oldest.seq) == "taken"
        await publish(queue, "greedy", 4)


async def test_publishing_again_after_a_lost_answer_stores_nothing_twice(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        await bus.wait_ready(60)
        queue = JobQueue(bus)
        await queue.ensure("default", 0)
        first = await publish(queue, "tenant", 1)
        assert await publish(queue, "tenant", 1) == first
        assert (await queue.waiting("default", 0)).jobs == {subjects.job_subject("default", 0, "tenant"): 1}


async def test_looking_counts_by_tenant_and_reads_the_oldest(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        await bus.wait_ready(60)
        queue = JobQueue(bus)
        await queue.ensure("default", 0)
        for number, tenant in enumerate(["one", "two", "one", "two", "one"]):
            await publish(queue, tenant, number, f"{tenant} {number}".encode())
        one, two = subjects.job_subject("default", 0, "one"), subjects.job_subject("default", 0, "two")
        assert (await queue.waiting("default", 0)).jobs == {one: 3, two: 2}
        oldest = await queue.oldest("default", 0, two)
        assert oldest is not None
        assert oldest.data == b"two 1"
        following = await queue.oldest("default", 0, two, from_seq=oldest.seq + 1)
        assert following is not None
        assert following.data == b"two 3"
        assert await queue.oldest("default", 0, two, from_seq=following.seq + 1) is None


async def test_a_sequence_from_before_a_restart_names_nothing(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        await bus.wait_ready(60)
        queue = JobQueue(bus)
        await queue.ensure("default", 0)
        old = await publish(queue, "tenant", 1)
        assert await queue.presence("default", 0, old) == "queued"
        nats_server.stop(kill=True)
        await until(lambda: not bus.ready)
        nats_server.start()
        await bus.wait_ready(60)
        assert await queue.presence("default", 0, old) == "forgotten"
        await queue.ensure("default", 0)
        new = await publish(queue, "tenant", 2)
        assert new > old
        assert await queue.take("default", 0, old) == "gone"
        assert await queue.presence("default", 0, old) == "forgotten"
        assert await queue.presence("default", 0, new) == "queued"


async def test_a_missing_stream_and_a_message_that_is_too_large_are_named(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="gateway") as bus:
        await bus.wait_ready(60)
        queue = JobQueue(bus)
        with pytest.raises(QueueMissing):
            await publish(queue, "tenant", 1)
        with pytest.raises(QueueMissing):
            await queue.waiting("default", 0)
        await queue.ensure("default", 0)
        with pytest.raises(BusTooLarge):
            await publish(queue, "tenant", 1, b"x" * (8 * 1024 * 1024 - 100))  # fits without its headers
        await publish(queue, "tenant", 1, b"x" * (8 * 1024 * 1024 - 600))
        assert bus.reconnects == 0


async def test_making_sure_of_a_stream_at_the_same_time_is_no_conflict(nats_server: services.NatsServer) -> None:
    buses = [await connected(nats_server.url) for _ in range(4)]
    await asyncio.gather(*(JobQueue(bus).ensure("default", tier) for bus in buses for tier in range(3)))
    for bus in buses:
        await bus.__aexit__()
