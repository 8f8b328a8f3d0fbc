"""NATS goes away and comes back, with and without what it held in memory."""

import asyncio
import shutil
import time

import pytest

from gateway.errors import Unavailable
from shared import subjects
from tests import services
from tests.integration.fleet import CONTEXT, fleet, gateway, job, opened, published, read, ready, tokens, until, usage
from tests.proxy import through_proxy

GIVES_UP = {"nats_wait_s": 0.5, "nats_outage_s": 0.5, "leave_wait_s": 0.5, "unseen_s": 0.5}


async def test_a_short_outage_loses_no_token(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(step_us=5_000)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=300)) as stream:
            got = tokens(await stream.next())
            nats_server.stop()
            await asyncio.sleep(0.5)
            nats_server.start()
            got += tokens(await read(stream))
        assert len(got) == stream.completion_tokens == 300
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.completion_tokens) == ("length", 300)


async def test_an_outage_of_the_gateways_connection_alone_loses_no_token(nats_server: services.NatsServer) -> None:
    """The worker goes on sending meanwhile, to nobody."""
    async with (
        through_proxy(nats_server.url) as (proxy, url),
        fleet(nats_server.url, gateway_silence_s=60) as workers,
        gateway(url, nats_outage_s=60) as dispatcher,
    ):
        workers.start(step_us=5_000)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=400)) as stream:
            got = tokens(await stream.next())
            for _ in range(2):
                await proxy.cut()
                await until(lambda: not dispatcher.bus.ready)
                await asyncio.sleep(0.3)
                await proxy.listen()
                await until(lambda: dispatcher.bus.ready)
            got += tokens(await read(stream))
        assert len(got) == stream.completion_tokens == 400
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.completion_tokens) == ("length", 400)


async def test_queued_jobs_survive_a_killed_server(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start(sequences_max=1, step_us=5_000)
        await ready(dispatcher)

        async def ask(max_tokens: int) -> int:
            async with opened(dispatcher, job(dispatcher, max_tokens=max_tokens)) as stream:
                await read(stream)
            return stream.completion_tokens

        asked = [asyncio.create_task(ask(200)), *(asyncio.create_task(ask(10 + number)) for number in range(5))]
        await published(dispatcher, 6)
        nats_server.stop(kill=True)
        await asyncio.sleep(0.2)
        nats_server.start()
        async with asyncio.timeout(60):
            assert await asyncio.gather(*asked) == [200, 10, 11, 12, 13, 14]
        events = await usage(nats_server.url, expected=6)
        assert len({event.request for event in events}) == len(events) == 6


async def test_the_whole_fleet_comes_back_after_the_server_lost_everything(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        workers.start()
        await ready(dispatcher, workers=2)
        buses = [dispatcher.bus, *(worker.link.bus for worker in workers.workers)]
        for emptied in (False, True):
            nats_server.stop(kill=True)
            if emptied:
                shutil.rmtree(nats_server.directory / "js")
            await until(lambda: not any(bus.ready for bus in buses))
            nats_server.start()
            await until(lambda: all(bus.ready for bus in buses))
            await ready(dispatcher, workers=2)
            async with asyncio.timeout(60):
                served = await asyncio.gather(*(_ask(dispatcher, job(dispatcher)) for _ in range(20)))
            assert served == [10] * 20


async def test_new_requests_are_refused_while_nats_is_away(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, **GIVES_UP) as dispatcher:
        workers.start()
        await ready(dispatcher)
        wanted = job(dispatcher)
        nats_server.stop()
        await until(lambda: not dispatcher.bus.ready)
        with pytest.raises(Unavailable) as caught:
            async with opened(dispatcher, wanted):
                pytest.fail("entered")
        assert caught.value.retry_after_ms
        with pytest.raises(Unavailable):
            await dispatcher.ready()
        nats_server.start()
        await dispatcher.bus.wait_ready(60)
        await dispatcher.ready()
        await until(lambda: dispatcher.open_attempts == 0)
        [event] = await usage(nats_server.url, expected=1)
        assert (event.request, event.final, event.completion_tokens) == (wanted.request, True, 0)


async def test_running_streams_end_with_an_error_when_the_outage_lasts(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, **GIVES_UP) as dispatcher:
        worker = workers.start(step_us=5_000)
        await ready(dispatcher)
        with pytest.raises(Unavailable):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                await stream.next()
                nats_server.stop()
                await read(stream)
        nats_server.start()
        await dispatcher.bus.wait_ready(60)
        # The worker still has it: it is cancelled there, and the worker bills.
        await until(lambda: dispatcher.open_attempts == 0 and len(worker.link.custody.attempts) == 0)
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.worker) == ("cancelled", worker.link.worker)


async def test_a_worker_and_a_gateway_that_start_without_nats_join_when_it_comes(
    nats_server: services.NatsServer,
) -> None:
    nats_server.stop()
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        workers.start()
        await asyncio.sleep(0.3)
        nats_server.start()
        await ready(dispatcher)
        assert await _ask(dispatcher, job(dispatcher)) == 10


async def test_a_gateway_that_comes_after_the_cards_were_removed_gets_them(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url, ensure_s=0.2) as workers:
        worker = workers.start()
        await until(lambda: worker.link.bus.ready)
        jetstream = worker.link.bus.jetstream()
        await jetstream.delete_object_store(subjects.CARD_BUCKET)
        await jetstream.delete_stream(subjects.USAGE_STREAM)
        async with gateway(nats_server.url) as dispatcher:
            await ready(dispatcher)
            assert await _ask(dispatcher, job(dispatcher)) == 10
            assert len(await usage(nats_server.url, expected=1)) == 1


async def test_an_outage_makes_nobody_silent(nats_server: services.NatsServer) -> None:
    async with (
        fleet(nats_server.url, gateway_silence_s=0.6, beat_s=0.05) as workers,
        gateway(nats_server.url, worker_silence_s=0.6, beat_s=0.05) as dispatcher,
    ):
        workers.start(step_us=5_000)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=400)) as stream:
            await stream.next()
            nats_server.stop()
            started = time.monotonic()
            await asyncio.sleep(1.2)  # twice the silence that would be a loss
            nats_server.start()
            await read(stream)
            assert time.monotonic() - started > 1.2
        assert stream.completion_tokens == 400


async def _ask(dispatcher, wanted) -> int:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)
    return stream.completion_tokens
