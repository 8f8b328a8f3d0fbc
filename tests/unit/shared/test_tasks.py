"""Background tasks: one that fails is told of with what it concerns, and one that must not end is begun anew."""

import asyncio

import pytest
from structlog.testing import capture_logs

from shared import tasks
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


async def test_work_without_an_end_outlives_what_nobody_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "KEEP_RETRY_S", 0.0)
    begun = 0
    ended = asyncio.Event()

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun < 3:
            raise ValueError("year 0 is out of range")
        ended.set()
        await asyncio.Event().wait()

    with capture_logs() as lines:
        kept = asyncio.create_task(tasks.keep(work, "prices"))
        await ended.wait()
        await tasks.stop([kept])
    assert begun == 3
    assert kept.cancelled()
    assert [(line["event"], line["task"]) for line in lines] == [("task.begun_anew", "prices")] * 2
