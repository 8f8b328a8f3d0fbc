"""A reader that leaves, at every stage of its request: the work stops, and there is one bill."""

import asyncio
import contextlib

import pytest

from gateway.errors import RequestFailed
from shared import subjects
from tests import services
from tests.integration.fleet import CONTEXT, PATIENCE_S, fleet, gateway, job, opened, read, ready, tokens, until, usage


async def test_leaving_a_running_request_frees_its_blocks_and_bills_what_ran(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        got = 0
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT, prompt=20)) as stream:
            while chunks := await stream.next():
                got += len(tokens(chunks))
                if got >= 10:
                    break
        assert stream.end is not None
        assert stream.end.outcome == "cancelled"
        stats = worker.link.custody.stats
        assert (stats.running, stats.blocks_free) == (0, stats.blocks_total)
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.final, event.prompt_tokens) == ("cancelled", True, 20)
        assert 10 <= event.completion_tokens < CONTEXT - 100
        assert stream.completion_tokens == event.completion_tokens


async def test_a_queued_request_is_taken_back(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(sequences_max=1)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as running:
            await running.next()
            waiting = asyncio.create_task(_read_all(dispatcher, job(dispatcher)))
            await until_queued(dispatcher, 1)
            waiting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await waiting
            await until_queued(dispatcher, 0)
        events = await usage(nats_server.url, expected=2)
        assert sorted(event.completion_tokens > 0 for event in events) == [False, True]
        assert all(event.finish == "cancelled" for event in events)
        await until(lambda: dispatcher.open_attempts == 0)


async def test_a_reader_that_leaves_while_its_job_is_being_published_loses_nothing(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        asked = [job(dispatcher, max_tokens=CONTEXT) for _ in range(20)]
        for number, wanted in enumerate(asked):
            task = asyncio.create_task(_read_all(dispatcher, wanted))
            for _ in range(1 + number):  # a little later each time: in the middle of every stage
                await asyncio.sleep(0)
            await asyncio.sleep(0.0002 * number)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await until(lambda: dispatcher.open_attempts == 0)
        await until(lambda: len(worker.link.custody.attempts) == 0)
        assert worker.link.custody.stats.blocks_free == worker.link.custody.stats.blocks_total
        events = await usage(nats_server.url, expected=20)
        assert sorted(event.request for event in events) == sorted(wanted.request for wanted in asked)
        assert {event.finish for event in events} == {"cancelled"}, "not known where it was"


async def test_a_reader_that_does_not_read_is_cancelled(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, reader_bytes_max=500) as dispatcher:
        workers.start()
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
            await until(lambda: stream.end is not None)
            with pytest.raises(RequestFailed) as caught:
                await read(stream)
        assert caught.value.code == "slow_reader"
        [event] = await usage(nats_server.url, expected=1)
        assert event.finish == "cancelled"
        assert event.completion_tokens < CONTEXT - 100


async def test_a_lagging_reader_gets_everything_in_fewer_pieces(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(step_us=200)
        await ready(dispatcher)
        wanted = job(dispatcher, max_tokens=500, seed=3)
        async with opened(dispatcher, wanted) as stream:
            await until(lambda: stream.end is not None)
            lagging = await read(stream)
        async with opened(dispatcher, job(dispatcher, max_tokens=500, seed=3)) as stream:
            prompt = await read(stream)
        assert len(lagging) < 300
        assert tokens(lagging) == tokens(prompt)
        assert "".join(chunk.text for chunk in lagging) == "".join(chunk.text for chunk in prompt)


async def until_queued(dispatcher, count: int) -> None:
    name = subjects.jobs_stream_name("default", 0)
    async with asyncio.timeout(PATIENCE_S):
        while (await dispatcher.bus.jetstream().stream_info(name)).state.messages != count:
            await asyncio.sleep(0.01)


async def _read_all(dispatcher, wanted) -> None:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)
