"""Attempts whose worker, messages or gateway are lost: an error for the client, one bill, no work for nobody."""

import asyncio

import pytest

from gateway.dispatch.limits import DispatchLimits
from gateway.errors import WorkerLost
from shared import subjects, wire
from shared.bus import Bus
from shared.jobs import JobQueue
from tests import services
from tests.clocks import OwnEpoch
from tests.integration.fleet import CONTEXT, fleet, gateway, job, opened, read, ready, tokens, until, usage


async def test_a_killed_worker_ends_its_streams_with_an_error_and_a_bill(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        got = 0
        with pytest.raises(WorkerLost):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                while chunks := await stream.next():
                    got += len(tokens(chunks))
                    if got >= 10 and not worker.task.done():
                        await worker.kill()
        assert stream.end is None
        assert stream.completion_tokens == got
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.final, event.completion_tokens, event.prompt_tokens) == ("lost", True, got, 5)
        assert event.worker == worker.link.worker
        assert dispatcher.fleet.models() == []
        assert dispatcher.open_attempts == 0


async def test_a_worker_that_freezes_is_lost_and_what_it_says_later_counts_for_nothing(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(step_us=5_000)
        await ready(dispatcher)
        frozen = asyncio.Event()

        async def silent() -> None:
            await frozen.wait()

        worker.link._beats.beat = silent  # it still generates, but its heart has stopped
        with pytest.raises(WorkerLost):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                await read(stream)
        # It is not on our books any more, so its next roll is answered with a cancel, and it does not bill.
        await until(lambda: len(worker.link.custody.attempts) == 0)
        assert worker.link.custody.wasted_tokens_total > 0
        events = await usage(nats_server.url, expected=1)
        assert [event.finish for event in events] == ["lost"]
        frozen.set()


@pytest.mark.parametrize("reconnected", [False, True])
async def test_a_lost_frame_is_noticed(nats_server: services.NatsServer, *, reconnected: bool) -> None:
    async with (
        fleet(nats_server.url) as workers,
        gateway(nats_server.url, clock=OwnEpoch(), repeat_s=0) as dispatcher,
    ):
        worker = workers.start()
        await ready(dispatcher)
        if reconnected:  # so long ago that no repeat is waited for
            nats_server.stop()
            await until(lambda: not dispatcher.bus.ready)
            nats_server.start()
            await dispatcher.bus.wait_ready(60)
            await ready(dispatcher)
        add = worker.link.outbox.add

        def lossy(gateway: str, item: object) -> None:
            if not (isinstance(item, wire.Chunk) and item.seq == 20):
                add(gateway, item)

        worker.link.outbox.add = lossy
        with pytest.raises(WorkerLost):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                await read(stream)
        await until(lambda: worker.link.custody.stats.running == 0)
        [event] = await usage(nats_server.url, expected=1)
        assert event.finish == "lost"


@pytest.mark.parametrize("what", ["accepted", "first frames", "end"])
async def test_a_roll_makes_good_or_tells_what_was_lost(nats_server: services.NatsServer, what: str) -> None:
    async with fleet(nats_server.url, roll_s=0.3) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(step_us=20_000)
        await ready(dispatcher)
        add = worker.link.outbox.add
        dropped: list[object] = []

        def lossy(gateway: str, item: object) -> None:
            kind = {
                "accepted": isinstance(item, wire.Accepted),
                "first frames": isinstance(item, wire.Accepted | wire.Chunk) and len(dropped) < 3,
                "end": isinstance(item, wire.End),
            }
            if kind[what]:
                dropped.append(item)
            else:
                add(gateway, item)

        worker.link.outbox.add = lossy
        wanted = job(dispatcher, max_tokens=40)
        if what == "accepted":  # the chunks show it as well
            async with opened(dispatcher, wanted) as stream:
                assert len(tokens(await read(stream))) == 40
        else:
            with pytest.raises(WorkerLost):
                async with opened(dispatcher, wanted) as stream:
                    await read(stream)
        assert dropped
        assert len(await usage(nats_server.url, expected=1)) == 1
        await until(lambda: dispatcher.open_attempts == 0)


async def test_two_workers_with_one_attempt_the_first_one_owns_it(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        first, second = workers.start(step_us=5_000), workers.start(step_us=5_000)
        await ready(dispatcher, workers=2)
        wanted = job(dispatcher, max_tokens=100)
        async with opened(dispatcher, wanted) as stream:
            await stream.next()
            owner, other = (first, second) if stream.worker == first.link.worker else (second, first)
            other.link.custody.claimed(wanted)  # as after a republished job whose first copy had been claimed
            await until(lambda: len(other.link.custody.attempts) == 0)
            await read(stream)
            assert stream.worker == owner.link.worker
        assert stream.completion_tokens == 100
        [event] = await usage(nats_server.url, expected=1)
        assert event.worker == owner.link.worker


async def test_a_silent_gateway_has_its_requests_aborted_and_billed(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url, gateway_silence_s=0.6, beat_s=0.05) as workers:
        async with gateway(nats_server.url, beat_s=0.05) as dispatcher:
            worker = workers.start(step_us=5_000)
            await ready(dispatcher)
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                await stream.next()
                dispatcher.bus.publish = _nothing  # its process is gone: no beat, no cancel
                await until(lambda: len(worker.link.custody.attempts) == 0)
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.final) == ("cancelled", True)
        assert 0 < event.completion_tokens < CONTEXT - 10


async def test_a_job_that_left_its_queue_and_shows_up_nowhere_is_lost(nats_server: services.NatsServer) -> None:
    async with (
        fleet(nats_server.url) as workers,
        gateway(nats_server.url, clock=OwnEpoch(), unseen_s=0.5) as dispatcher,
        Bus(nats_server.url, name="thief", role="worker") as bus,
    ):
        worker = workers.start(sequences_max=1, step_us=5_000)
        await ready(dispatcher)
        await bus.wait_ready(60)
        queue = JobQueue(bus)
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as blocker:
            await blocker.next()
            waiting = asyncio.create_task(_ask(dispatcher, job(dispatcher)))
            subject = subjects.job_subject("default", 0, "tenant")
            while (queued := await queue.oldest("default", 0, subject)) is None:
                await asyncio.sleep(0.01)
            assert await queue.take("default", 0, queued.seq) == "taken"  # a worker that dies right after its claim
            dispatcher._reconciler._doubts.set()  # as when its silence is noticed
            with pytest.raises(WorkerLost):
                await waiting
            assert worker.link.custody.stats.running == 1
        finishes = sorted(event.finish for event in await usage(nats_server.url, expected=2))
        assert finishes == ["cancelled", "lost"]


def test_silence_is_longer_than_a_few_beats() -> None:
    limits = DispatchLimits()
    assert limits.worker_silence_s >= 4 * limits.beat_s


async def _ask(dispatcher, wanted) -> None:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)


async def _nothing(*_: object) -> None:
    pass
