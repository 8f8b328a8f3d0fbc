"""How attempts end, and who bills them."""

import asyncio

import pytest

from gateway.dispatch.attempt import end_error
from gateway.dispatch.bills import bill
from gateway.errors import GatewayError, InvalidRequest, RequestFailed, Unavailable, WorkerLost
from tests.unit.dispatch.samples import attempt, chunk, end


@pytest.mark.parametrize(
    ("outcome", "error", "kind"),
    [
        ("error", "does_not_fit", InvalidRequest),
        ("error", "invalid_request", InvalidRequest),
        ("error", "shutdown", Unavailable),
        ("error", "device_failed", WorkerLost),
        ("error", "engine_error", RequestFailed),
        ("error", "a code of a later version", RequestFailed),
        ("cancelled", None, WorkerLost),
    ],
)
def test_every_end_that_is_not_an_answer_is_an_error(outcome, error, kind) -> None:
    assert isinstance(end_error(end(1, outcome=outcome, error=error)), kind)


def test_a_finished_answer_is_no_error() -> None:
    assert end_error(end(1)) is None


def test_the_first_error_counts() -> None:
    mine = attempt()
    first, second = WorkerLost("first"), Unavailable("second")
    mine.fail(first)
    mine.fail(second)
    mine.finish(end(1, outcome="cancelled"))
    assert mine.error is first


def test_an_attempt_ends_once() -> None:
    mine = attempt()
    mine.close()
    with pytest.raises(AssertionError):
        mine.close()


def test_whoever_waits_is_woken_by_every_way_of_ending() -> None:
    failed, ended, closed, bound = attempt(), attempt(), attempt(), attempt()
    failed.fail(GatewayError("x"))
    ended.finish(end(1))
    closed.close()
    bound.bind("w1", 1.0)
    assert all(each.answered.is_set() for each in (failed, ended, closed, bound))
    assert [each.over.is_set() for each in (failed, ended, closed, bound)] == [False, True, True, False]
    assert [each.bound.is_set() for each in (failed, ended, closed, bound)] == [False, True, True, True]


@pytest.mark.parametrize("ending", ["enough", "no room for more", "end", "failure"])
async def test_a_reader_of_many_chunks_sleeps_until_they_are_there_or_none_will_come(ending: str) -> None:
    mine = attempt(reader_bytes_max=900 if ending == "no room for more" else 1_000_000)
    reading = asyncio.create_task(mine.wait(10))
    for seq in range(1, 4):
        mine.receive(chunk(seq), 1.0)
        await asyncio.sleep(0)
        assert not mine.readable.is_set()
    if ending == "end":
        mine.finish(end(4))
    elif ending == "failure":
        mine.fail(WorkerLost("lost"))
    else:
        for seq in range(4, 11 if ending == "enough" else 6):
            mine.receive(chunk(seq), 1.0)
    await reading
    assert len(mine.take()) == {"enough": 10, "no room for more": 5}.get(ending, 3)


def test_the_bill_of_what_never_ran_is_zero() -> None:
    event = bill(attempt(), finish="cancelled", gateway="gw", now=2.5)
    assert (event.final, event.prompt_tokens, event.completion_tokens, event.ttft_ms) == (True, 0, 0, None)
    assert (event.finish, event.worker, event.gateway, event.total_ms) == ("cancelled", "", "gw", 2500)


def test_the_bill_of_what_was_lost_is_what_arrived() -> None:
    mine = attempt(n=2)
    mine.bind("w1", 0.5)
    mine.receive(chunk(1), 1.0)
    mine.receive(chunk(2, choice=1), 2.0)
    event = bill(mine, finish="lost", gateway="gw", now=3.0)
    assert (event.prompt_tokens, event.completion_tokens, event.ttft_ms) == (3, 2, 1000)
    assert (event.request, event.attempt, event.tenant, event.key, event.model) == ("r1", 1, "tenant", "key", "model")
