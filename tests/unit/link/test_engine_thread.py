"""The bridge between the event loop and the engine's thread."""

import asyncio
import dataclasses
import threading

import pytest

from tests.integration.fleet import toy_engine
from worker.engine.engine import Engine
from worker.engine.errors import InvalidRequest
from worker.engine.request import EngineRequest, SamplingParams
from worker.link import engine_thread
from worker.link.engine_thread import EngineThread, Report


def request(name: str = "r", *, max_tokens: int = 5) -> EngineRequest:
    return EngineRequest(
        id=name,
        prompts=([1, 2, 3],),
        n=1,
        sampling=SamplingParams(max_tokens=max_tokens),
        tier=0,
        tenant="t",
        salt=b"",
    )


def lose_block(engine: Engine) -> None:
    engine._pool._unused.pop()


def free_block_twice(engine: Engine) -> None:
    engine._pool._unused[0] = engine._pool._unused[1]


class Reports:
    def __init__(self) -> None:
        self.all: list[Report] = []
        self.threads: set[str] = set()

    def __call__(self, report: Report) -> None:
        self.all.append(report)
        self.threads.add(threading.current_thread().name)

    @property
    def tokens(self) -> int:
        return sum(len(report.step.chunks) for report in self.all if report.step)

    async def until(self, condition) -> None:
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)


@pytest.fixture
async def running():
    reports = Reports()
    engine, _ = toy_engine(step_us=500)
    thread = EngineThread(engine, reports, reports_max=4)
    thread.start()
    yield thread, reports, engine
    assert await thread.stop(60)


async def test_requests_go_in_and_reports_come_out_on_the_loop(running) -> None:
    thread, reports, _ = running
    thread.add(request())
    await reports.until(lambda: any(report.step and report.step.done for report in reports.all))
    assert reports.all[0].added == ["r"]
    assert reports.tokens == 5
    assert reports.threads == {threading.current_thread().name}
    assert reports.all[-1].stats.blocks_free == reports.all[-1].stats.blocks_total
    assert 0 <= thread.step_age_s() < 60


async def test_an_abort_reports_its_counts_once(running) -> None:
    thread, reports, _ = running
    thread.add(request(max_tokens=2000))
    await reports.until(lambda: reports.tokens >= 3)
    thread.abort("r")
    thread.abort("r")
    thread.abort("unknown")
    await reports.until(lambda: any(report.aborted for report in reports.all))
    await asyncio.sleep(0.02)
    [(name, totals)] = [each for report in reports.all for each in report.aborted]
    assert (name, totals.prompt_tokens) == ("r", 3)
    assert totals.completion_tokens == reports.tokens
    assert reports.all[-1].stats.running == 0


async def test_what_the_engine_refuses_is_reported(running) -> None:
    """The first is so long that it has not ended when the second comes, however late that is."""
    thread, reports, _ = running
    thread.add(request(max_tokens=2000))
    thread.add(request())
    await reports.until(lambda: any(report.refused for report in reports.all))
    [(name, error)] = [each for report in reports.all for each in report.refused]
    assert name == "r"
    assert isinstance(error, InvalidRequest)


async def test_a_fault_of_one_request_is_not_the_engines(running) -> None:
    thread, reports, _ = running
    thread.add(dataclasses.replace(request("bad"), sampling=None))
    thread.add(request("good"))
    await reports.until(lambda: any(report.step and report.step.done for report in reports.all))
    [(name, error)] = [each for report in reports.all for each in report.refused]
    assert (name, type(error)) == ("bad", AttributeError)
    assert reports.tokens == 5


async def test_it_rests_when_there_is_nothing_to_do(running) -> None:
    thread, reports, _ = running
    thread.add(request())
    await reports.until(lambda: any(report.step and report.step.done for report in reports.all))
    await asyncio.sleep(0.02)
    count = len(reports.all)
    await asyncio.sleep(0.05)
    assert len(reports.all) == count


@pytest.mark.parametrize("fault", [lose_block, free_block_twice])
async def test_a_broken_invariant_ends_the_thread_and_is_told(fault) -> None:
    engine, _ = toy_engine(step_us=0)
    reports = Reports()
    thread = EngineThread(engine, reports, reports_max=4)
    thread.start()
    fault(engine)
    thread.add(request())
    assert thread.failed is not None
    with pytest.raises(AssertionError):
        await asyncio.wait_for(asyncio.shield(thread.failed), 60)
    assert await thread.stop(60)


async def test_a_short_step_is_taken_before_the_next_one_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token would wait for all steps that the thread makes before it lets go of the interpreter."""
    monkeypatch.setattr(engine_thread, "SHORT_STEP_S", 60.0)
    monkeypatch.setattr(engine_thread, "HAND_OVER_S_MAX", 60.0)
    engine, _ = toy_engine(step_us=0)
    ahead: list[int] = []

    class Watched(Reports):
        def __call__(self, report: Report) -> None:
            super().__call__(report)
            ahead.append(engine.stats().generated_tokens_total - self.tokens)

    reports = Watched()
    thread = EngineThread(engine, reports, reports_max=4)
    thread.start()
    thread.add(request(max_tokens=200))
    await reports.until(lambda: reports.tokens == 200)
    assert set(ahead) == {0}
    assert await thread.stop(60)


async def test_the_engine_does_not_run_ahead_of_the_loop() -> None:
    engine, _ = toy_engine(step_us=0)
    reports = Reports()
    thread = EngineThread(engine, reports, reports_max=4)
    thread.start()
    thread.add(request(max_tokens=500))
    threading.Event().wait(0.2)  # the loop is stuck
    assert engine.stats().generated_tokens_total <= 6
    await reports.until(lambda: reports.tokens == 500)
    assert await thread.stop(60)
