import pytest

from tests.unit.engine.builders import enqueue, make_scheduler, make_sequence, run_step, shape
from worker.engine.blocks import NO_TABLE
from worker.engine.sequence import Status
from worker.engine.service import Service


def test_a_long_prompt_is_cut_into_chunks_beside_decodes():
    scheduler = make_scheduler()
    enqueue(scheduler, make_sequence(0, 3))
    assert shape(run_step(scheduler)) == [(0, 3)]
    enqueue(scheduler, make_sequence(1, 40))
    assert shape(run_step(scheduler)) == [(0, 1), (1, 15)]
    assert shape(run_step(scheduler)) == [(0, 1), (1, 15)]
    assert shape(run_step(scheduler)) == [(0, 1), (1, 10)]
    assert shape(run_step(scheduler)) == [(0, 1), (1, 1)]


def test_decodes_come_before_a_prompt_that_is_more_urgent():
    scheduler = make_scheduler()
    enqueue(scheduler, make_sequence(0, 3, tier=2))
    run_step(scheduler)
    enqueue(scheduler, make_sequence(1, 40, tier=0))
    run_step(scheduler)
    assert shape(run_step(scheduler)) == [(0, 1), (1, 15)]


def test_the_budget_is_shared_by_several_prompts():
    scheduler = make_scheduler()
    enqueue(scheduler, *(make_sequence(arrival, 6) for arrival in range(4)))
    assert shape(run_step(scheduler)) == [(0, 6), (1, 6), (2, 4)]
    assert shape(run_step(scheduler)) == [(0, 1), (1, 1), (2, 2), (3, 6)]


def test_waiting_sequences_go_by_tier_then_by_arrival():
    scheduler = make_scheduler(sequences_max=1)
    enqueue(scheduler, make_sequence(0, 3, tier=2), make_sequence(1, 3, tier=1), make_sequence(2, 3, tier=1))
    order: list[int] = []
    for _ in range(3):
        sequence = run_step(scheduler).sequences()[0]
        order.append(sequence.arrival)
        scheduler.release(sequence)
    assert order == [1, 2, 0]


def test_nobody_overtakes_a_sequence_that_waits_for_room():
    scheduler = make_scheduler(blocks=6)
    enqueue(scheduler, make_sequence(0, 12, tokens_max=14), make_sequence(1, 16, tokens_max=24), make_sequence(2, 2))
    for _ in range(2):
        assert [arrival for arrival, _ in shape(run_step(scheduler))] == [0]


def test_a_sequence_is_admitted_only_with_room_for_its_whole_prompt():
    scheduler = make_scheduler(blocks=8, tokens_per_step=8)
    enqueue(scheduler, make_sequence(0, 17, tokens_max=20), make_sequence(1, 14, tokens_max=20))
    run_step(scheduler)  # 0 takes 5 blocks at once, although its first chunk needs 2
    assert shape(run_step(scheduler)) == [(0, 8)]
    assert len(scheduler.waiting) == 1


def test_a_prompt_takes_the_whole_budget_alone_and_a_part_beside_decodes():
    scheduler = make_scheduler(blocks=20, tokens_beside_decodes=3)
    enqueue(scheduler, make_sequence(0, 20, tokens_max=22))
    assert [shape(run_step(scheduler)) for _ in range(2)] == [[(0, 16)], [(0, 4)]]
    enqueue(scheduler, make_sequence(1, 20, tokens_max=21))
    assert shape(run_step(scheduler)) == [(0, 1), (1, 3)]
    scheduler.release(next(iter(scheduler.running)))
    assert shape(run_step(scheduler)) == [(1, 16)]


def test_the_watermark_keeps_room_for_those_that_run():
    scheduler = make_scheduler(blocks=10, watermark=0.2)
    enqueue(scheduler, make_sequence(0, 4), make_sequence(1, 32, tokens_max=36))
    assert shape(run_step(scheduler)) == [(0, 4)]  # 1 + 8 blocks would leave 1
    assert len(scheduler.waiting) == 1


def test_the_watermark_does_not_hold_when_nothing_runs():
    scheduler = make_scheduler(blocks=10, watermark=0.2)
    enqueue(scheduler, make_sequence(0, 39, tokens_max=40))
    assert shape(run_step(scheduler)) == [(0, 16)]


def test_no_more_than_sequences_max_run():
    scheduler = make_scheduler(sequences_max=2)
    enqueue(scheduler, *(make_sequence(arrival, 2) for arrival in range(3)))
    assert [arrival for arrival, _ in shape(run_step(scheduler))] == [0, 1]
    assert len(scheduler.waiting) == 1


def test_the_victim_has_the_least_work_to_lose():
    scheduler = make_scheduler(blocks=6, tokens_per_step=32)
    old, young = make_sequence(0, 11, tokens_max=24), make_sequence(1, 8, tokens_max=24)
    enqueue(scheduler, old, young)
    run_step(scheduler)  # 3 + 2 blocks
    run_step(scheduler)  # the young one takes the last
    assert run_step(scheduler).preempted == 1  # the old one needs its fourth
    assert (old.status, young.status) == (Status.RUNNING, Status.WAITING)
    assert (young.num_computed, young.table is NO_TABLE, len(young.tokens)) == (0, True, 10)


def test_the_victim_is_of_the_least_urgent_tier_however_much_it_has_done():
    scheduler = make_scheduler(blocks=6, tokens_per_step=32)
    cheap, urgent = make_sequence(0, 16, tier=2, tokens_max=24), make_sequence(1, 7, tier=0, tokens_max=24)
    enqueue(scheduler, cheap, urgent)
    run_step(scheduler)
    while cheap.status is Status.RUNNING:
        run_step(scheduler)
    assert urgent.status is Status.RUNNING


def test_the_one_that_asks_may_be_the_victim():
    scheduler = make_scheduler(blocks=5, tokens_per_step=32)
    first, second = make_sequence(0, 12, tokens_max=20), make_sequence(1, 8, tokens_max=20)
    enqueue(scheduler, first, second)
    run_step(scheduler)
    second_before = second.num_computed
    run_step(scheduler)
    assert second_before == 8
    assert second.status is Status.WAITING
    assert first.status is Status.RUNNING


@pytest.mark.parametrize(("tier", "admitted_at_once"), [(1, False), (0, True)], ids=["equal", "urgent"])
def test_only_a_more_urgent_one_is_admitted_in_a_step_that_preempted(tier, admitted_at_once):
    scheduler = make_scheduler(blocks=6, tokens_per_step=32)
    enqueue(scheduler, make_sequence(10, 11, tier=1, tokens_max=24), make_sequence(11, 8, tier=1, tokens_max=24))
    run_step(scheduler)
    run_step(scheduler)
    # Before the victim, and what that gives up would be room for both.
    enqueue(scheduler, make_sequence(2, 1, tier=tier, tokens_max=4), make_sequence(3, 1, tier=tier, tokens_max=4))
    plan = run_step(scheduler)
    assert plan.preempted == 1
    assert shape(plan) == ([(10, 1), (2, 1)] if admitted_at_once else [(10, 1)])


def test_a_preempted_sequence_gets_its_place_and_its_tokens_back():
    scheduler = make_scheduler(blocks=6, tokens_per_step=32)
    first, second = make_sequence(0, 11, tokens_max=24), make_sequence(1, 8, tokens_max=24)
    enqueue(scheduler, first, second)
    for _ in range(3):
        run_step(scheduler)
    enqueue(scheduler, make_sequence(2, 1, tokens_max=4))
    scheduler.release(first)
    assert shape(run_step(scheduler)) == [(1, 2), (2, 1)]  # its two full blocks were still cached


@pytest.mark.parametrize("steps", [0, 1, 2], ids=["waiting", "in its prompt", "decoding"])
def test_release_frees_from_any_state_and_only_once(steps):
    scheduler = make_scheduler()
    sequence = make_sequence(0, 20)
    enqueue(scheduler, sequence)
    for _ in range(steps):
        run_step(scheduler)
    scheduler.release(sequence)
    scheduler.release(sequence)
    scheduler.check_integrity()
    assert (len(scheduler.running), len(scheduler.waiting), sequence.table is NO_TABLE) == (0, 0, True)
    assert scheduler.schedule().sequences() == []


def test_a_sequence_that_could_outgrow_the_pool_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError):
        make_scheduler(blocks=4).add(make_sequence(0, 3, tokens_max=17))


def test_integrity_finds_a_waiting_sequence_with_blocks():
    scheduler = make_scheduler()
    sequence = make_sequence(0, 3)
    enqueue(scheduler, sequence)
    sequence.table = scheduler.tables.take()
    with pytest.raises(AssertionError, match="waiting"):
        scheduler.check_integrity()


@pytest.mark.parametrize(
    "options",
    [
        {"tokens_per_step": 7},
        {"watermark": 1.0},
        {"watermark": -0.1},
        {"sequences_max": 0},
        {"tokens_beside_decodes": 0},
        {"pace": 1.0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_numbers_that_cannot_make_progress_are_refused(options):
    with pytest.raises(ValueError):
        make_scheduler(**options)


class Asked(Service):
    """Counts how often it is asked for a counter."""

    times = 0

    def level(self, tier: int, tenant: str) -> float:
        self.times += 1
        return super().level(tier, tenant)


@pytest.mark.parametrize(("tier", "is_asked"), [(1, False), (2, False), (0, True)])
def test_with_every_place_taken_a_turn_is_looked_for_only_if_somebody_may_give_way(tier, is_asked):
    service = Asked()
    scheduler = make_scheduler(sequences_max=1, service=service)
    enqueue(scheduler, make_sequence(0, 3, tier=1))
    run_step(scheduler)
    enqueue(scheduler, make_sequence(1, 3, tier=tier))
    before = service.times
    scheduler.schedule()
    assert (service.times > before) == is_asked
