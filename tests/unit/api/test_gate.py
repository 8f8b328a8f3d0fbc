import asyncio

import pytest

from gateway.api.gate import UNREAD_SHARE, Gate
from gateway.errors import QueueFull, Unavailable


async def test_places_are_bounded_and_come_back() -> None:
    gate = Gate(2)
    gate.enter()
    gate.enter()
    assert gate.taken == 2
    with pytest.raises(Unavailable):
        gate.enter()
    gate.leave()
    gate.enter()
    assert gate.taken == 2


async def test_some_may_come_in_beyond_a_full_gate_and_are_bounded_too() -> None:
    gate = Gate(1)
    gate.enter()
    gate.enter(beyond=1)
    for beyond in (0, 1):
        with pytest.raises(Unavailable):
            gate.enter(beyond=beyond)
    gate.leave()
    gate.leave()
    gate.closed = True
    with pytest.raises(Unavailable):
        gate.enter(beyond=1)


async def test_the_bodies_of_one_tenant_hold_a_share_of_the_places_and_those_of_others_are_read() -> None:
    gate = Gate(2 * UNREAD_SHARE)
    gate.start_reading("one")
    gate.start_reading("one")
    with pytest.raises(QueueFull) as refused:
        gate.start_reading("one")
    assert (refused.value.retry_after_ms, refused.value.should_retry) == (1_000, True)
    gate.start_reading("other")
    gate.stop_reading("one")
    gate.start_reading("one")


async def test_the_smallest_gateway_reads_one_body() -> None:
    gate = Gate(1)
    for _ in range(2):
        gate.start_reading("one")
        gate.stop_reading("one")


async def test_drain_waits_for_those_inside_and_admits_nobody() -> None:
    gate = Gate(2)
    leave = asyncio.Event()

    async def request() -> None:
        gate.enter()
        await leave.wait()
        gate.leave()

    task = asyncio.create_task(request())
    await asyncio.sleep(0)
    drained = asyncio.create_task(gate.drain(10))
    await asyncio.sleep(0)
    assert not drained.done()
    with pytest.raises(Unavailable) as refused:
        gate.enter()
    assert refused.value.retry_after_ms
    leave.set()
    assert await drained
    await task


async def test_drain_gives_up() -> None:
    gate = Gate(1)
    gate.enter()
    assert not await gate.drain(0.01)
    gate.leave()
    assert await gate.drain(0.01)
