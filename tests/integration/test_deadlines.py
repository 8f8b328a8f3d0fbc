"""Jobs that wait for too long leave their queue unstarted, unbilled, and in time; one that was claimed is served."""

import asyncio
import contextlib

import msgspec
import pytest

from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.terms import Terms
from gateway.errors import DeadlineExceeded
from shared import subjects, wire
from shared.jobs import JobQueue
from tests import services
from tests.integration.fleet import CONTEXT, PATIENCE_S, fleet, gateway, job, opened, read, ready, tokens, until, usage


async def queued(dispatcher: Dispatcher, wanted: wire.Job) -> int:
    """The sequence number of a job that lies in its queue."""
    queue = JobQueue(dispatcher.bus)
    subject = subjects.job_subject("default", wanted.tier, wanted.tenant)
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(Exception):
                if (found := await queue.oldest("default", wanted.tier, subject)) is not None:
                    return found.seq
            await asyncio.sleep(0.01)


async def test_a_job_is_shed_when_its_client_gives_up_and_never_reaches_a_worker(
    nats_server: services.NatsServer,
) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sequences_max=1)
        await ready(dispatcher)
        async with opened(dispatcher, job(dispatcher, max_tokens=CONTEXT)) as running:
            await running.next()
            with pytest.raises(DeadlineExceeded):
                async with opened(dispatcher, job(dispatcher, prompt=3), wait_s=60, client_s=0.3):
                    pytest.fail("entered")
            assert not (await JobQueue(dispatcher.bus).waiting("default", 0)).jobs
        shed = [event for event in await usage(nats_server.url, expected=2) if event.worker == ""]
        assert [(event.final, event.prompt_tokens, event.completion_tokens) for event in shed] == [(True, 0, 0)]
        assert worker.link.custody.stats.prompt_tokens_total == 5, "its prompt was computed"
        assert dispatcher.open_attempts == 0


async def test_a_job_that_a_worker_claims_at_the_deadline_is_served(nats_server: services.NatsServer) -> None:
    """The worker is played: it takes the job before the deadline, which the test brings about, and says so after it."""
    async with fleet(nats_server.url) as workers, gateway(nats_server.url, no_worker_s=60) as dispatcher:
        real = workers.start()
        await ready(dispatcher)
        await real.drain()
        wanted = msgspec.structs.replace(job(dispatcher), card="of-nobody")

        async def ask() -> list[int]:
            async with opened(dispatcher, wanted) as stream:
                return tokens(await read(stream))

        async with asyncio.TaskGroup() as group:
            asking = group.create_task(ask())
            sequence = await queued(dispatcher, wanted)
            assert await JobQueue(dispatcher.bus).take("default", 0, sequence) == "taken"
            [attempt] = dispatcher._inbox.attempts()
            dispatcher._shed(attempt, Terms(wait_s=PATIENCE_S))
            await until(lambda: attempt.unseen_since is not None)  # it was not in its queue any more
            assert not asking.done(), "it was given up though somebody has it"
            said = (
                wire.Accepted(request=wanted.request, attempt=1),
                wire.Chunk(request=wanted.request, attempt=1, seq=1, choice=0, ids=wire.pack_ids([7]), text="x"),
                wire.End(
                    request=wanted.request,
                    attempt=1,
                    seq=2,
                    outcome="finished",
                    prompt_tokens=5,
                    cached_tokens=0,
                    completion_tokens=1,
                ),
            )
            frame = wire.encode(wire.Frame(worker="played", items=said))
            await dispatcher.bus.publish(subjects.frame_subject(dispatcher.gateway_id), frame)
        assert asking.result() == [7]
