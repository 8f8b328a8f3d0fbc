"""More than a fleet can do, over real queues and a real engine: everybody gets an answer or a refusal, and soon.

What happens does not depend on who is faster: the worker is full and stays so, or its engine fails, before the requests
in question are sent.
"""

import asyncio
from collections import Counter

from gateway.dispatch.dispatcher import Dispatcher
from gateway.errors import GatewayError, QueueFull, Unavailable
from shared import wire
from shared.jobs import JobQueue
from tests import services
from tests.integration.fleet import CONTEXT, Worker, fleet, gateway, job, opened, read, ready, until, usage

PLACES = 4


async def full(dispatcher: Dispatcher, worker: Worker, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """The worker's places are taken for good, its pace is known, and the gateway has heard of both."""
    async with opened(dispatcher, job(dispatcher, max_tokens=20)) as stream:
        await read(stream)

    async def occupy() -> None:
        async with opened(dispatcher, job(dispatcher, tenant="resident", max_tokens=CONTEXT)) as stream:
            await read(stream)

    residents = [group.create_task(occupy()) for _ in range(PLACES)]

    def known() -> bool:
        loads = [beat.load for beat in dispatcher.fleet.workers() if beat.load is not None]
        return any(sum(work.running for work in load.tiers) == PLACES for load in loads)

    await until(known)
    return residents


async def outcome(dispatcher: Dispatcher, wanted: wire.Job, **terms: float | None) -> GatewayError | None:
    try:
        async with opened(dispatcher, wanted, wait_s=60, **terms) as stream:
            await read(stream)
    except GatewayError as error:
        return error
    return None


async def test_what_cannot_be_in_time_is_refused_before_it_is_queued(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sequences_max=PLACES, step_us=2_000)
        await ready(dispatcher)
        async with asyncio.TaskGroup() as group:
            residents = await full(dispatcher, worker, group)
            refused = [await outcome(dispatcher, job(dispatcher), added_s=0.001) for _ in range(20)]
            assert {type(error) for error in refused} == {Unavailable}
            assert all(error is not None and error.retry_after_ms for error in refused)
            assert dispatcher.open_attempts == PLACES
            assert not (await JobQueue(dispatcher.bus).waiting("default", 0)).jobs
            for resident in residents:
                resident.cancel()
        assert await outcome(dispatcher, job(dispatcher)) is None
        assert len(await usage(nats_server.url, expected=PLACES + 2)) == PLACES + 2, "a refusal was billed"


async def test_of_a_burst_each_is_answered_or_refused_and_what_runs_goes_on(nats_server: services.NatsServer) -> None:
    """The requests arrive together, and yet each sees those that were let in before it."""
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sequences_max=PLACES, step_us=2_000)
        await ready(dispatcher)
        async with asyncio.TaskGroup() as group:
            residents = await full(dispatcher, worker, group)
            [first] = [beat.load for beat in dispatcher.fleet.workers()]
            assert first is not None
            a_place_s = first.step_s * first.output_tokens_mean / PLACES
            burst = [
                group.create_task(outcome(dispatcher, job(dispatcher, tenant=f"t{number}"), added_s=5.5 * a_place_s))
                for number in range(30)
            ]
            await until(lambda: sum(task.done() for task in burst) >= 20)
            for resident in residents:
                resident.cancel()
        outcomes = Counter(type(task.result()) for task in burst)
        assert set(outcomes) == {type(None), Unavailable}
        assert outcomes[type(None)] in range(1, 11)
        assert dispatcher.open_attempts == 0


async def test_a_gateway_knows_what_waits_at_another(nats_server: services.NatsServer) -> None:
    async with (
        fleet(nats_server.url) as workers,
        gateway(nats_server.url) as one,
        gateway(nats_server.url) as other,
        asyncio.TaskGroup() as group,
    ):
        worker = workers.start(sequences_max=PLACES)
        await ready(one)
        await ready(other)
        residents = await full(one, worker, group)
        waiting = [group.create_task(outcome(one, job(one, tenant="t"))) for _ in range(7)]
        await until(lambda: other.overload.queues.total("default", 0, other._clock.monotonic()).requests == 7)
        error = await outcome(other, job(other, tenant="u"), queued_requests_max=7)
        assert isinstance(error, QueueFull)
        for task in [*residents, *waiting]:
            task.cancel()


class Device:
    """What the engine's steps wait for."""

    def __init__(self) -> None:
        self.broken = True

    def sleep(self, _: float) -> None:
        if self.broken:
            raise RuntimeError("the device is gone")


async def test_an_engine_that_fails_is_left_alone_and_then_tried_again(nats_server: services.NatsServer) -> None:
    """Clients send each request three times unless they are told not to: the fleet has not more work for it."""
    device = Device()
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(step_us=1, sleep=device.sleep)
        await ready(dispatcher)
        outcomes, logical = Counter[str](), 60
        for number in range(logical):
            for attempt in range(3):
                error = await outcome(dispatcher, job(dispatcher, tenant=f"t{number % 3}"), retry=attempt > 0)
                assert error is not None
                outcomes[error.code or ""] += 1
                if error.should_retry is False:
                    break
        assert outcomes["engine_error"] < logical / 2
        assert outcomes["server_is_overloaded"] > logical
        device.broken = False
        async with asyncio.timeout(60):
            while dispatcher.overload.breakers.open_pools():
                await outcome(dispatcher, job(dispatcher, tenant="new"))
                await asyncio.sleep(0.1)
        assert await outcome(dispatcher, job(dispatcher, tenant="new")) is None
        assert worker.link.ready


async def test_refusals_and_cancels_open_no_circuit(nats_server: services.NatsServer) -> None:
    async with fleet(nats_server.url) as workers, gateway(nats_server.url) as dispatcher:
        worker = workers.start(sequences_max=PLACES, blocks=40)
        await ready(dispatcher)
        async with asyncio.TaskGroup() as group:
            residents = await full(dispatcher, worker, group)
            for _ in range(30):
                assert isinstance(await outcome(dispatcher, job(dispatcher), added_s=0.001), Unavailable)
            for resident in residents:
                resident.cancel()
        for number in range(30):
            error = await outcome(dispatcher, job(dispatcher, tenant=f"t{number}", prompt=2_000))
            assert error is not None
            assert error.status == 400
            async with opened(dispatcher, job(dispatcher, tenant=f"t{number}", max_tokens=100)) as stream:
                await stream.next()
        assert dispatcher.overload.breakers.open_pools() == []
        assert await outcome(dispatcher, job(dispatcher)) is None
