import random

import pytest

from tests.unit.engine.builders import make_sequence
from worker.engine.queue import WaitingQueue
from worker.engine.sequence import Sequence
from worker.engine.service import OWED_TOKENS, Service


class Waiting:
    """A queue over a service that knows the tenants `a` to `d` in tiers 0 to 2."""

    def __init__(self, floor_share: float = 0.0) -> None:
        self.service = Service(input_weight=1.0, floor_share=floor_share)
        self.queue = WaitingQueue(self.service)
        for tier in range(3):
            for tenant in "abcd":
                self.service.arrived(tier, tenant)

    def add(self, arrival: int, tenant: str = "a", tier: int = 0) -> Sequence:
        sequence = make_sequence(arrival, 3, tier=tier, tenant=tenant)
        self.queue.add(sequence)
        return sequence

    def serve(self, tenant: str, tokens: int, tier: int = 0) -> None:
        self.service.charge(tier, tenant, input_tokens=tokens)

    def drain(self, *, cost: int = 0) -> list[int]:
        """Arrivals in the order in which they are taken, each paying `cost`."""
        order: list[int] = []
        while (sequence := self.queue.head(strict=False)) is not None:
            self.queue.remove(sequence)
            order.append(sequence.arrival)
            self.serve(sequence.tenant, cost, sequence.tier)
        return order


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


def test_an_empty_queue_has_no_head(waiting):
    assert waiting.queue.head(strict=False) is None
    assert (len(waiting.queue), waiting.queue.counts()) == (0, {})


def test_the_tenant_that_was_served_least_goes_first_then_the_first_to_arrive(waiting):
    for arrival, tenant in enumerate("aabbcc"):
        waiting.add(arrival, tenant)
    waiting.serve("a", 10)
    waiting.serve("c", 5)
    assert waiting.drain() == [2, 3, 4, 5, 0, 1]


def test_tenants_take_turns_when_each_turn_costs(waiting):
    for arrival, tenant in enumerate("aaabbbc"):
        waiting.add(arrival, tenant)
    assert waiting.drain(cost=7) == [0, 3, 6, 1, 4, 2, 5]


def test_one_that_comes_back_gets_its_old_place(waiting):
    for arrival in (3, 5, 1, 4):
        waiting.add(arrival)
    waiting.add(2, "b")
    assert waiting.drain() == [1, 2, 3, 4, 5]


def test_tiers_go_by_urgency_unless_one_is_owed_its_share():
    waiting = Waiting(floor_share=0.1)
    for arrival, tier in enumerate((2, 1, 0)):
        waiting.add(arrival, tier=tier)
    waiting.serve("a", int(10 * OWED_TOKENS))
    head = waiting.queue.head(strict=False)
    assert head is not None
    assert head.tier == 1
    strict = waiting.queue.head(strict=True)
    assert strict is not None
    assert strict.tier == 0
    assert waiting.queue.counts() == {0: 1, 1: 1, 2: 1}


def test_removing_what_does_not_wait_is_a_bug(waiting):
    waiting.add(1)
    with pytest.raises(AssertionError, match="not in this queue"):
        waiting.queue.remove(make_sequence(1, 3, tenant="a"))


def test_what_leaves_counts_at_once_and_no_longer_than_until_it_is_settled(waiting):
    for arrival, tenant in enumerate("aaab"):
        waiting.add(arrival, tenant)
    for expected in (0, 3, 1):
        head = waiting.queue.head(strict=True)
        assert head.arrival == expected
        waiting.queue.remove(head)
        waiting.queue.count_ahead(head, 5.0)
    waiting.queue.settle()
    waiting.add(4, "b")
    assert waiting.drain() == [2, 4]


def test_the_heads_are_those_of_a_full_sort_whatever_happens(waiting):
    chance = random.Random(5)
    inside: list[Sequence] = []
    for arrival in range(600):
        if chance.random() < 0.55:
            inside.append(waiting.add(arrival * 7 % 601, chance.choice("abcd"), chance.randrange(3)))
        elif inside:
            gone = inside.pop(chance.randrange(len(inside)))
            waiting.queue.remove(gone)
        waiting.serve(chance.choice("abcd"), chance.randrange(3), chance.randrange(3))
        levels = {sequence: waiting.service.level(sequence.tier, sequence.tenant) for sequence in inside}
        if arrival % 5 == 0:
            for sequence in inside[:3]:
                waiting.queue.count_ahead(sequence, 9.0)
            waiting.queue.head(strict=True)
            waiting.queue.settle()
        expected = min(inside, key=lambda one: (one.tier, levels[one], one.arrival), default=None)
        assert waiting.queue.head(strict=True) is expected
        assert len(waiting.queue) == len(inside)
    assert set(waiting.queue.sequences()) == set(inside)


def test_turns_that_are_out_of_date_do_not_pile_up(waiting):
    waiting.add(10_000, "b")
    for arrival in range(5_000, 0, -1):
        waiting.queue.remove(waiting.add(arrival, "a"))
    assert len(waiting.queue._tiers[0]._turns) < 100
    for _ in range(5_000):
        waiting.queue.count_ahead(waiting.queue.head(strict=True), 1.0)
        waiting.queue.settle()
    assert len(waiting.queue._tiers[0]._turns) < 100
