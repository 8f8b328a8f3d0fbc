"""Usage events reach their stream once, whatever happens to NATS meanwhile."""

import asyncio

from structlog.testing import capture_logs

from shared import subjects, wire
from shared.bus import Bus
from shared.usage import UsagePublisher
from tests import services
from tests.integration.fleet import usage


def event(request: str = "r", attempt: int = 1) -> wire.UsageEvent:
    return wire.UsageEvent(
        request=request,
        attempt=attempt,
        final=True,
        tenant="t",
        key="k",
        model="m",
        tier=0,
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=2,
        recomputed_tokens=0,
        finish="stop",
        ttft_ms=1,
        total_ms=2,
        worker="w",
        gateway="g",
    )


async def stored(publisher: UsagePublisher, sent: wire.UsageEvent, timeout_s: float = 60.0) -> bool:
    """Whether it was durable in time."""
    told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    publisher.submit_then(sent, told.set_result, timeout_s)
    return await told


async def test_an_event_is_kept_until_its_stream_is_there(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="worker") as bus, UsagePublisher(bus) as publisher:
        await bus.wait_ready(60)
        assert not await stored(publisher, event(), 0.3)
        assert publisher.pending == 1
        await publisher.ensure()
        assert await publisher.drain(60) == 0
        assert await usage(nats_server.url, expected=1) == [event()]


async def test_an_event_waits_out_an_outage(nats_server: services.NatsServer) -> None:
    async with Bus(nats_server.url, name="test", role="worker") as bus, UsagePublisher(bus) as publisher:
        bus_ready = bus.wait_ready(60)
        await bus_ready
        await publisher.ensure()
        nats_server.stop(kill=True)
        await asyncio.sleep(0.05)
        sent = [asyncio.create_task(stored(publisher, event(f"r{number}"))) for number in range(20)]
        await asyncio.sleep(0.2)
        nats_server.start()
        assert await asyncio.gather(*sent) == [True] * 20
        assert len(await usage(nats_server.url, expected=20)) == 20


async def test_two_writers_of_one_attempt_leave_one_event(nats_server: services.NatsServer) -> None:
    async with (
        Bus(nats_server.url, name="one", role="worker") as one,
        Bus(nats_server.url, name="two", role="gateway") as two,
        UsagePublisher(one) as worker,
        UsagePublisher(two) as gateway,
    ):
        await one.wait_ready(60)
        await two.wait_ready(60)
        await worker.ensure()
        assert await asyncio.gather(stored(worker, event()), stored(gateway, event())) == [True, True]
        assert await stored(worker, event(attempt=2))
        assert [each.attempt for each in await usage(nats_server.url, expected=2)] == [1, 2]


async def test_memory_is_bounded(nats_server: services.NatsServer) -> None:
    nats_server.stop()
    async with Bus(nats_server.url, name="test", role="worker") as bus, UsagePublisher(bus, pending_max=3) as publisher:
        with capture_logs() as lines:
            for number in range(5):
                publisher.submit(event(f"r{number}"), trace=f"t{number}")
        await asyncio.sleep(0)
        assert (publisher.pending, publisher.dropped_total) == (3, 2)
        dropped = [line for line in lines if line["event"] == "usage.dropped"]
        assert [(line["request"], line["trace"]) for line in dropped] == [("r0", "t0"), ("r1", "t1")]
        nats_server.start()
        await bus.wait_ready(60)
        await publisher.ensure()
        assert await publisher.drain(60) == 0
        assert {each.request for each in await usage(nats_server.url, expected=3)} == {"r2", "r3", "r4"}


def test_the_stream_keeps_events_until_the_ledger_has_them() -> None:
    stream, consumer = subjects.usage_stream(), subjects.usage_consumer()
    assert stream.duplicate_window >= 600
    assert consumer.max_deliver == -1
