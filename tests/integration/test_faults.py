"""Something goes wrong with one request inside a worker: it ends with an error and a bill, and the others go on."""

import msgspec
import pytest

from gateway.errors import InvalidRequest, RequestFailed
from tests import services
from tests.integration.fleet import fleet, gateway, job, opened, read, ready, usage
from worker.engine.results import ChoiceChunk, StepResult
from worker.link.engine_thread import Report
from worker.link.held import key_of


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
