"""Background tasks: one that fails is told of with what it concerns."""

import asyncio

from structlog.testing import capture_logs

from shared.tasks import Tasks


async def test_a_failure_names_its_request() -> None:
    async def fail() -> None:
        raise ValueError("ours")

    async with Tasks("owner") as tasks:
        with capture_logs() as lines:
            task = tasks.spawn(fail(), "work", request="r", trace="t")
            await asyncio.wait([task])
            await asyncio.sleep(0)
        assert tasks.failed == "work"
    [line] = lines
    assert (line["event"], line["task"], line["request"], line["trace"]) == ("task.failed", "work", "r", "t")
