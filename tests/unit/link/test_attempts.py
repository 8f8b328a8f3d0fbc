"""The numbers on what a worker sends: seq without a hole, rolls that are true, bills that add up."""

import pytest

from shared import wire
from tests.unit.dispatch.samples import job
from worker.engine.results import ChoiceChunk, RequestTotals, TokenLogprob
from worker.link.attempts import Attempts, Ending

TOTALS = RequestTotals(prompt_tokens=3, cached_tokens=1, completion_tokens=2, preemptions=4, recomputed_tokens=6)


def chunk(choice: int = 0, *, finish=None, logprobs=None) -> ChoiceChunk:
    return ChoiceChunk("r1:1", choice, [7], "x", finish, logprobs)


def test_seq_counts_every_item_and_a_roll_says_what_was_sent() -> None:
    attempts = Attempts()
    attempt = attempts.add(job(n=2), 10.0)
    assert attempts.roll("gw").entries == (wire.RollEntry(request="r1", attempt=1, seq=0, tokens=0),)
    assert [attempt.chunk(chunk(), 11.0).seq, attempt.chunk(chunk(1), 12.0).seq] == [1, 2]
    assert attempts.roll("gw").entries == (wire.RollEntry(request="r1", attempt=1, seq=2, tokens=2),)
    assert attempt.end(Ending("finished", TOTALS)).seq == 3
    assert attempts.roll("other").entries == ()


def test_holdings_forget_what_has_ended() -> None:
    attempts = Attempts()
    attempt = attempts.add(job(), 0.0)
    assert attempts.has(job())
    assert attempts.gateways() == ["gw"]
    attempts.remove(attempt)
    assert (len(attempts), attempts.gateways(), attempts.get("r1:1")) == (0, [], None)
    with pytest.raises(KeyError):
        attempts.remove(attempt)


def test_an_attempt_is_held_once() -> None:
    attempts = Attempts()
    attempts.add(job(), 0.0)
    with pytest.raises(AssertionError):
        attempts.add(job(), 0.0)
    attempts.add(job(attempt=2), 0.0)
    assert len(attempts) == 2


def test_logprobs_go_over_as_they_are() -> None:
    attempt = Attempts().add(job(), 0.0)
    sent = attempt.chunk(chunk(logprobs=[TokenLogprob(7, -0.5, b"x", ((7, -0.5, b"x"), (8, -1.0, b"y")))]), 0.0)
    assert sent.logprobs == (wire.TokenLogprob(id=7, logprob=-0.5, text=b"x", top=((7, -0.5, b"x"), (8, -1.0, b"y"))),)


@pytest.mark.parametrize(
    ("finishes", "outcome", "told"),
    [
        (["stop", "stop"], "finished", "stop"),
        (["length"], "finished", "length"),
        (["stop", "length"], "finished", "mixed"),
        (["stop"], "cancelled", "cancelled"),
        ([], "error", "error"),
    ],
)
def test_a_bill_names_how_it_ended(finishes, outcome, told) -> None:
    attempt = Attempts().add(job(n=2), 10.0)
    for choice, finish in enumerate(finishes):
        attempt.chunk(chunk(choice, finish=finish), 10.5)
    event = attempt.bill(Ending(outcome, TOTALS), worker="w1", now=12.0)
    assert event.finish == told
    assert (event.prompt_tokens, event.cached_tokens, event.completion_tokens) == (3, 1, 2)
    assert (event.recomputed_tokens, event.preemptions) == (6, 4)
    assert (event.request, event.attempt, event.final, event.worker, event.gateway) == ("r1", 1, True, "w1", "gw")
    assert (event.ttft_ms, event.total_ms) == (500 if finishes else None, 2000)
