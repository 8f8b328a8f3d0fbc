"""An engine that hangs in a step: its worker says so, and nobody waits for it."""

import asyncio
import threading
import time

import pytest

from gateway.errors import Unavailable, WorkerLost
from tests import services
from tests.integration.fleet import CONTEXT, fleet, gateway, job, opened, read, ready, until, usage


class Holdup:
    """The `sleep` of a fake runner: after some steps one does not end until it is released."""

    def __init__(self, *, after: int) -> None:
        self._steps_left = after
        self._released = threading.Event()

    def __call__(self, seconds: float) -> None:
        time.sleep(seconds)
        self._steps_left -= 1
        if self._steps_left < 0:
            self._released.wait()

    def release(self) -> None:
        self._released.set()


async def test_a_hanging_engine_is_lost_though_its_worker_beats(nats_server: services.NatsServer) -> None:
    holdup = Holdup(after=10)
    async with (
        fleet(nats_server.url, step_s_max=2.0) as workers,
        gateway(nats_server.url, worker_silence_s=60, no_worker_s=0.3) as dispatcher,
    ):
        worker = workers.start(sleep=holdup)
        await ready(dispatcher)
        with pytest.raises(WorkerLost):
            async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as stream:
                await read(stream)
        assert (worker.link.fault, worker.link.ready) == ("a step has taken over 2 s", False)
        assert (dispatcher.fleet.workers(), dispatcher.fleet.models()) == ([], [])

        wanted = job(dispatcher)
        with pytest.raises(Unavailable, match="No worker"):
            async with opened(dispatcher, wanted):
                pytest.fail("claimed by a worker that hangs")

        holdup.release()
        await ready(dispatcher)
        await until(lambda: len(worker.link.custody.attempts) == 0)
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        finishes = sorted(event.finish for event in await usage(nats_server.url, expected=3))
        assert finishes == ["cancelled", "length", "lost"]


async def test_a_long_step_is_no_hang_and_new_jobs_go_to_others(nats_server: services.NatsServer) -> None:
    holdup = Holdup(after=10)
    async with fleet(nats_server.url, step_slow_s=0.2) as workers, gateway(nats_server.url) as dispatcher:
        slow = workers.start(sleep=holdup)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=50)) as stream:
            await until(slow.link._slow)
            quick = workers.start()
            await ready(dispatcher, workers=2)
            for _ in range(5):
                async with opened(dispatcher, job(dispatcher)) as other:
                    await read(other)
                    assert other.worker == quick.link.worker
            await quick.drain()
            alone = asyncio.create_task(_ask(dispatcher, job(dispatcher)))
            await asyncio.sleep(0.3)
            assert not alone.done()
            holdup.release()
            await read(stream)
            await alone
        assert stream.completion_tokens == 50


async def _ask(dispatcher, wanted) -> None:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)
