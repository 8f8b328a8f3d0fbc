"""The fence, the order of chunks, and what rolls tell."""

import pytest

from gateway.dispatch.inbox import Inbox
from tests.unit.dispatch.samples import accepted, attempt, chunk, end, entry, frame, roll


def inbox_with(*attempts):
    inbox = Inbox()
    for each in attempts:
        inbox.add(each)
    return inbox


def reasons(verdicts):
    return [(cancel.request, cancel.attempt, cancel.reason) for cancel in verdicts.cancels]


def test_the_first_worker_that_accepts_owns_the_attempt() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    assert not inbox.on_frame(frame(accepted(), worker="w1"), 1.0).cancels
    assert mine.worker == "w1"
    assert reasons(inbox.on_frame(frame(accepted(), worker="w2"), 2.0)) == [("r1", 1, "duplicate")]
    assert mine.worker == "w1"
    assert not inbox.on_frame(frame(accepted(), worker="w1"), 3.0).cancels


def test_only_the_owner_is_listened_to() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), worker="w1"), 1.0)
    inbox.on_frame(frame(chunk(1), end(2), worker="w2"), 2.0)
    assert (mine.seq, mine.end, mine.take()) == (0, None, [])


def test_an_unknown_attempt_is_cancelled_where_it_was_accepted() -> None:
    inbox = inbox_with(attempt("other"))
    verdicts = inbox.on_frame(frame(accepted("r9"), accepted("other", number=2)), 1.0)
    assert reasons(verdicts) == [("r9", 1, "duplicate"), ("other", 2, "duplicate")]


def test_chunks_and_end_arrive_in_order_and_repeats_are_dropped() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), chunk(1), chunk(2)), 1.0)
    inbox.on_frame(frame(accepted(), chunk(1), chunk(2), chunk(3)), 1.0)
    verdicts = inbox.on_frame(frame(end(4)), 1.0)
    assert [one.seq for one in mine.take()] == [1, 2, 3]
    assert verdicts.ended == [mine]
    assert mine.over.is_set()
    assert len(inbox) == 0


def test_a_chunk_of_a_choice_that_does_not_exist_costs_its_attempt_alone() -> None:
    broken, whole = attempt("r1"), attempt("r2")
    inbox = inbox_with(broken, whole)
    verdicts = inbox.on_frame(frame(chunk(1, "r1", choice=7), chunk(1, "r2"), end(2, "r2")), 1.0)
    assert (verdicts.lost, verdicts.ended) == ([broken], [whole])


def test_while_repeats_may_come_nothing_is_lost() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), chunk(1)), 1.0)
    early = inbox.on_frame(frame(chunk(4), roll(entry(4)), roll(), end(5)), 1.0, patient=True)
    assert (early.lost, early.ended) == ([], [])
    repeated = inbox.on_frame(frame(chunk(1), chunk(2), chunk(3), chunk(4), end(5)), 1.0, patient=True)
    assert repeated.ended == [mine]
    assert [one.seq for one in mine.take()] == [1, 2, 3, 4]


@pytest.mark.parametrize("late", [chunk(3), end(3)])
def test_a_hole_is_a_loss(late) -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), chunk(1)), 1.0)
    verdicts = inbox.on_frame(frame(late), 1.0)
    assert verdicts.lost == [mine]
    assert [one.seq for one in mine.take()] == [1]
    assert len(inbox) == 0
    assert inbox.of_worker("w1") == []


def test_a_lost_acceptance_is_made_good_by_a_chunk_or_a_roll() -> None:
    by_chunk, by_roll = attempt("r1"), attempt("r2")
    inbox = inbox_with(by_chunk, by_roll)
    assert not inbox.on_frame(frame(chunk(1, "r1")), 1.0).lost
    verdicts = inbox.on_frame(frame(roll(entry(1, "r1"), entry(0, "r2"))), 1.0)
    assert (verdicts.lost, verdicts.cancels) == ([], [])
    assert by_chunk.worker == by_roll.worker == "w1"


def test_an_attempt_that_a_roll_leaves_out_is_lost() -> None:
    mine, other, waiting = attempt("r1"), attempt("r2"), attempt("r3")
    inbox = inbox_with(mine, other, waiting)
    inbox.on_frame(frame(accepted("r1"), accepted("r2")), 1.0)
    assert inbox.on_frame(frame(roll(), worker="w2"), 1.0).lost == []  # another worker's roll says nothing of it
    assert inbox.on_frame(frame(roll(entry(0, "r2"))), 1.0).lost == [mine]


def test_a_roll_shows_the_loss_of_the_last_chunks() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), chunk(1)), 1.0)
    assert inbox.on_frame(frame(roll(entry(1))), 1.0).lost == []
    assert inbox.on_frame(frame(roll(entry(2))), 1.0).lost == [mine]


def test_a_roll_with_what_is_not_ours_is_answered_with_cancels() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), worker="w1"), 1.0)
    verdicts = inbox.on_frame(frame(roll(entry(5), entry(0, "r9")), worker="w2"), 1.0)
    assert reasons(verdicts) == [("r1", 1, "duplicate"), ("r9", 1, "duplicate")]
    assert verdicts.lost == []


def test_holes_do_no_harm_once_the_reader_has_left() -> None:
    mine = attempt()
    inbox = inbox_with(mine)
    inbox.on_frame(frame(accepted(), chunk(1)), 1.0)
    mine.left = "client"
    assert inbox.on_frame(frame(chunk(5), roll(entry(7))), 1.0).lost == []
    assert inbox.on_frame(frame(end(9, outcome="cancelled")), 1.0).ended == [mine]
    assert mine.completion_tokens == 8  # the worker's count, not ours


def test_a_slow_reader_is_pointed_out() -> None:
    mine = attempt(reader_bytes_max=500)
    inbox = inbox_with(mine)
    slow = [inbox.on_frame(frame(chunk(seq, text="x" * 50)), 1.0).slow for seq in range(1, 6)]
    assert slow[0] == []
    assert slow[-1] == [mine]


def test_tokens_are_counted_by_choice() -> None:
    mine = attempt(n=2)
    inbox = inbox_with(mine)
    inbox.on_frame(frame(chunk(1), chunk(2, choice=1), chunk(3, choice=1)), 1.0)
    assert mine.tokens == [1, 2]
    assert mine.first_token_at == 1.0
