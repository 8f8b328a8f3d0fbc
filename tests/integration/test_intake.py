"""Where a worker looks for jobs: where a wake says, and everywhere now and then."""

import asyncio
import dataclasses

import msgspec

from shared import subjects, wire
from shared.bus import Bus
from shared.jobs import JobQueue, ensure_stream, publication
from tests import services
from tests.clocks import HandClock
from tests.integration.fleet import toy_engine, until
from tests.unit.dispatch.samples import job
from worker.engine.service import Service
from worker.link.attempts import key_of
from worker.link.claim_order import ClaimOrder
from worker.link.intake import Intake, Where
from worker.link.limits import LinkLimits
from worker.link.room import Room

POLL_S = 60.0  # of the test's clock: no test lasts so long


async def test_however_often_it_is_woken_it_looks_everywhere_now_and_then(nats_server: services.NatsServer) -> None:
    """A wake can be lost, and of a tenant whose job another worker took it tells nothing more."""
    engine, config = toy_engine()
    service, clock = Service(), HandClock()
    claimed: list[str] = []
    async with Bus(nats_server.url, name="w1", role="worker") as bus:
        await bus.wait_ready(60)
        # A queue that wakes nobody: the test does.
        await ensure_stream(bus, dataclasses.replace(subjects.jobs_stream("default", 0), republish=None))
        queue = JobQueue(bus)

        async def put(tenant: str) -> None:
            data = wire.encode(msgspec.structs.replace(job(), tenant=tenant))
            await queue.publish(publication("default", 0, tenant, data, msg_id=tenant, ttl_s=60), timeout_s=60)

        async def wake(tenant: str) -> None:
            """As the server republishes what lies in the queue; of a tenant who has nothing there, of what is gone."""
            subject = subjects.job_subject("default", 0, tenant)
            found = await queue.oldest("default", 0, subject)
            sequence, data = (1, wire.encode(job())) if found is None else (found.seq, found.data)
            headers = {"Nats-Sequence": str(sequence), "Nats-Time-Stamp": "2026-11-30T12:00:00.123456789Z"}
            await bus.client.publish(subject.replace(".job.", ".wake.job."), data, headers=headers)

        room = Room(config, engine.stats())

        def take(taken: wire.Job) -> None:
            room.withdraw(key_of(taken.request, taken.attempt))  # no engine will report it
            claimed.append(taken.tenant)

        intake = Intake(
            bus=bus,
            queue=queue,
            where=Where(pool="default", tiers=(0,), card=job().card),
            room=room,
            order=ClaimOrder(service),
            slow=lambda: False,
            alive=lambda _: True,
            claimed=take,
            limits=LinkLimits(poll_s=POLL_S),
            clock=clock,
        )
        await put("first")
        running = asyncio.create_task(intake.run())
        await until(lambda: claimed == ["first"])
        await put("unheard")
        await wake("ghost")
        await put("told")
        await wake("told")
        await until(lambda: claimed == ["first", "told"])
        clock.now += POLL_S
        await put("more")
        await wake("more")
        await until(lambda: sorted(claimed) == ["first", "more", "told", "unheard"])
        intake.stop()
        await running
    for tenant in ("more", "unheard"):
        service.charge(0, tenant, input_tokens=100)
    assert service.level(0, "ghost") == 100, "it does not count as one that waits"
