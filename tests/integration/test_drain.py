"""A worker and a gateway that are told to go: nothing is cut, nothing is lost, nothing new is taken."""

import asyncio

import pytest

from gateway.errors import Unavailable
from tests import services
from tests.integration.fleet import CONTEXT, fleet, gateway, job, opened, read, ready, tokens, until, usage


async def test_a_draining_worker_finishes_what_runs_and_claims_no_more(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        leaving = workers.start(step_us=5_000, drain_s=60)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=100)) as stream:
            await stream.next()
            leaving.stop.set()
            await until(lambda: dispatcher.fleet.models() == [])
            staying = workers.start()
            await ready(dispatcher)
            async with opened(dispatcher, job(dispatcher)) as other:
                await read(other)
                assert other.worker == staying.link.worker
            await read(stream)
            assert stream.worker == leaving.link.worker
        await leaving.task
        assert stream.completion_tokens == 100
        await until(lambda: counted(dispatcher, leaving.link.worker) == (1, 100))
        assert len(await usage(nats_server.url, expected=2)) == 2


async def test_at_the_end_of_its_patience_a_worker_aborts_and_bills(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        leaving = workers.start(drain_s=0.3)
        await ready(dispatcher)
        got = 0
        with pytest.raises(Unavailable, match="shutting down"):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                while chunks := await stream.next():
                    got += len(tokens(chunks))
                    leaving.stop.set()
        await leaving.task
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.final) == ("error", True)
        assert event.completion_tokens >= got > 0


async def test_a_closing_gateway_cancels_what_is_open(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers:
        async with gateway(nats_server.url) as dispatcher:
            worker = workers.start()
            await ready(dispatcher)
            reading = asyncio.create_task(_ask(dispatcher, job(dispatcher, max_tokens=CONTEXT)))
            await until(lambda: worker.link.custody.stats.running == 1)
        with pytest.raises(Unavailable):
            await reading
        await until(lambda: len(worker.link.custody.attempts) == 0)
        [event] = await usage(nats_server.url, expected=1)
        assert event.finish == "cancelled"


def counted(dispatcher, worker: str) -> tuple[int, int]:
    """The bills and output tokens that a worker's last beat told of."""
    [beat] = [beat for beat in dispatcher.fleet.last_beats() if beat.worker == worker]
    return beat.bills, beat.billed_completion_tokens


async def _ask(dispatcher, wanted) -> None:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)
