"""Something goes wrong inside a worker: with one request, which ends alone, or with the device, which ends all."""

import asyncio
import itertools

import msgspec
import pytest

from gateway.errors import InvalidRequest, RequestFailed, WorkerLost
from tests import services
from tests.integration.fleet import fleet, gateway, job, opened, read, ready, until, usage
from worker.engine.results import ChoiceChunk, StepResult
from worker.engine.runner import RunnerBroken
from worker.link.attempts import key_of
from worker.link.engine_thread import Report


async def test_output_that_cannot_be_sent_ends_its_own_request(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        custody = workers.start(step_us=5_000).link.custody
        await ready(dispatcher)
        bad, good = job(dispatcher, max_tokens=1000), job(dispatcher, max_tokens=100)

        async def ask_badly() -> None:
            async with opened(dispatcher, bad) as stream:
                await stream.next()
                key = key_of(bad.request, bad.attempt)
                impossible = ChoiceChunk(key, 0, [-1], "", None, None)
                custody.on_report(Report(custody.stats, step=StepResult(chunks=[impossible])))
                await read(stream)

        async with opened(dispatcher, good) as stream:
            with pytest.raises(RequestFailed, match="failed while it processed"):
                await ask_badly()
            await read(stream)
        assert stream.completion_tokens == 100
        finishes = {event.request: event.finish for event in await usage(nats_server.url, expected=2)}
        assert finishes == {bad.request: "error", good.request: "length"}


@pytest.mark.parametrize(
    "change",
    [
        {"prompts": (b"abc",)},  # not whole ids
        {"prompts": (b"\xff\xff\xff\xff",)},  # not in the vocabulary
        {"prompts": ()},
        {"n": 0},
    ],
)
async def test_a_job_that_makes_no_sense_is_refused_and_the_worker_lives(
    nats_server: services.NatsServer, change: dict[str, object]
) -> None:
    """A gateway would not let it through; if one does, it must not take the worker with it."""
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start()
        await ready(dispatcher)
        with pytest.raises(InvalidRequest):
            async with opened(dispatcher, msgspec.structs.replace(job(dispatcher), **change)) as stream:
                await read(stream)
        async with opened(dispatcher, job(dispatcher)) as stream:
            await read(stream)
        assert stream.completion_tokens == 10
        assert not worker.task.done()


async def test_a_worker_whose_device_has_failed_ends_what_it_holds_and_leaves(nats_server: services.NatsServer) -> None:
    """One sequence at a time: whoever waits inside the worker ends as well, and what waits in the queue goes on."""
    steps = itertools.count()

    def compute(_: float) -> None:
        if next(steps) >= 5:
            raise RunnerBroken("the device has failed")

    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sleep=compute, sequences_max=1)
        await ready(dispatcher)

        async def ask() -> int:
            async with opened(dispatcher, job(dispatcher, max_tokens=100)) as stream:
                await read(stream)
            return stream.completion_tokens

        asked = [asyncio.create_task(ask()) for _ in range(3)]
        with pytest.raises(RunnerBroken):
            await worker.task
        assert (worker.link.fault, worker.link.ready) == ("the device has failed", False)
        assert len(worker.link.custody.attempts) == 0
        await until(lambda: not dispatcher.fleet.serves(worker.link._digest))
        workers.start()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} <= {int, WorkerLost}
        lost = sum(isinstance(outcome, WorkerLost) for outcome in outcomes)
        assert lost >= 1
        finishes = sorted(event.finish for event in await usage(nats_server.url, expected=3))
        assert finishes == ["error"] * lost + ["length"] * (3 - lost)
