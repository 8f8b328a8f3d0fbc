"""What a step costs, learned, and how much of prompts goes beside decodes by it."""

import random

import pytest

from tests.unit.engine.builders import enqueue, make_scheduler, make_sequence, run_step
from worker.engine.pace import SPARE_LEAST, TOKENS_LEAST, Pace, Work
from worker.engine.schedule import Schedule

SLOW_MACHINE = Pace(2.5, costs_s=[0.4, 0.01, 0.02, 3e-5, 4e-5])


def measured(work: Work, chance: random.Random) -> float:
    return SLOW_MACHINE.expected_s(work) * chance.uniform(0.9, 1.1)


def any_work(chance: random.Random) -> Work:
    work = Work(chance.randint(1, 32))
    return work.beside(chance.randint(1, 100), chance.randint(0, 4_000)) if chance.random() < 0.5 else work


def learned(steps: int = 1_000) -> Pace:
    chance, pace = random.Random(1), Pace(2.5)
    for _ in range(steps):
        work = any_work(chance)
        pace.learn(work, measured(work, chance))
    return pace


def test_it_learns_what_steps_cost_on_a_machine_ten_times_slower():
    pace, chance = learned(), random.Random(2)
    for _ in range(50):
        work = any_work(chance)
        assert pace.expected_s(work) == pytest.approx(SLOW_MACHINE.expected_s(work), rel=0.25)


def test_a_chunk_that_it_allows_keeps_the_step_within_the_pace():
    pace = learned()
    typical_s = SLOW_MACHINE.expected_s(Work(round(pace.typical_decodes)))
    for decodes in (1, 4, 16, 32):
        own_s = SLOW_MACHINE.expected_s(Work(decodes))
        for computed in (0, 500, 4_000):
            tokens = pace.tokens(pace.spare_s(decodes), computed)
            step_s = SLOW_MACHINE.expected_s(Work(decodes).beside(tokens, computed))
            assert step_s < 1.3 * max(pace.times * typical_s, (1 + SPARE_LEAST) * own_s)


def test_what_is_typical_is_an_average_over_tokens():
    pace = Pace(2.5)
    for _ in range(2_000):
        pace.learn(Work(2), pace.expected_s(Work(2)))
        pace.learn(Work(8), pace.expected_s(Work(8)))
    assert pace.typical_decodes == pytest.approx(6.8, rel=0.05)  # (2 * 2 + 8 * 8) / (2 + 8)


def test_a_busy_moment_leaves_less_to_prompts_but_never_nothing():
    pace = Pace(2.5, typical_decodes=4.0)
    assert pace.spare_s(2) > pace.spare_s(4) > pace.spare_s(8)
    assert pace.spare_s(200) == pytest.approx(SPARE_LEAST * pace.expected_s(Work(200)))


def test_the_longest_chunk_is_the_longest():
    pace = Pace(2.5)
    for spare_s in (0.01, 0.1, 1.0):
        for computed in (0, 100, 4_000):
            tokens = pace.tokens(spare_s, computed)
            assert tokens == 0 or pace.chunk_s(tokens, computed) <= spare_s
            assert pace.chunk_s(tokens + 1, computed) > spare_s


def test_it_does_not_learn_about_prompts_from_decodes():
    pace = Pace(2.5)
    before = pace.costs_s[2:]
    pace.learn(Work(4), 1.0)
    assert pace.costs_s[2:] == before
    assert pace.expected_s(Work(4)) > Pace(2.5).expected_s(Work(4))


def test_it_does_not_learn_from_prompts_alone_or_from_no_time():
    pace = Pace(2.5)
    pace.learn(Work(0).beside(512, 0), 9.0)
    pace.learn(Work(1), 0.0)
    assert pace == Pace(2.5)


def test_a_step_that_something_else_held_up_counts_for_little():
    pace = Pace(2.5)
    pace.learn(Work(8), 60.0)
    assert pace.expected_s(Work(8)) < 1.4 * Pace(2.5).expected_s(Work(8))


def chunk_beside(decodes: int, *, typical: int = 1, found: int = 0) -> Schedule:
    """What a step has of a long prompt of which `found` tokens are computed, beside so many decodes."""
    scheduler = make_scheduler(blocks=200, pace=2.5, tokens_per_step=250, sequences_max=32)
    for _ in range(500):
        scheduler.record_time(Work(typical), Pace(2.5).expected_s(Work(typical)))
    long = make_sequence(99, 250, tokens_max=251)
    enqueue(scheduler, *(make_sequence(arrival, 2, tokens_max=6) for arrival in range(decodes)), long)
    plan = scheduler.schedule()
    scheduler.launch(plan)
    scheduler.advance(plan)
    for sequence in plan.sequences():
        if sequence is not long:
            sequence.tokens.append(2)
    long.table.computed = found
    return scheduler.schedule()


def test_more_goes_beside_what_is_usual_and_less_after_a_longer_context():
    alone, busy, usual = chunk_beside(1), chunk_beside(16), chunk_beside(16, typical=16)
    later = chunk_beside(16, typical=16, found=200)
    assert [len(plan.decodes) for plan in (alone, busy, usual, later)] == [1, 16, 16, 16]
    tokens = [plan.chunks[0].tokens for plan in (alone, busy, later, usual)]
    assert min(tokens) > TOKENS_LEAST
    assert tokens[0] < tokens[2] < tokens[3] < 200
    assert tokens[1] < tokens[3]


def test_a_prompt_gets_on_however_dear_its_tokens_are():
    scheduler = make_scheduler(blocks=60, pace=2.5, tokens_per_step=64)
    enqueue(scheduler, make_sequence(0, 2, tokens_max=40))
    run_step(scheduler)
    for _ in range(200):
        scheduler.record_time(Work(1).beside(8, 0), 60.0)
        scheduler.record_time(Work(1), 0.001)
    enqueue(scheduler, make_sequence(1, 40, tokens_max=41))
    assert [chunk.tokens for chunk in run_step(scheduler).chunks] == [TOKENS_LEAST]


def test_prompts_share_what_is_left_beside_decodes():
    scheduler = make_scheduler(blocks=60, pace=2.5, tokens_per_step=64)
    enqueue(scheduler, make_sequence(0, 2, tokens_max=40))
    run_step(scheduler)
    enqueue(scheduler, *(make_sequence(arrival, 11, tokens_max=12) for arrival in range(1, 5)))
    plan = run_step(scheduler)
    assert [chunk.tokens for chunk in plan.chunks] == [11, 9]  # nobody else is admitted
    assert plan.admitted == [chunk.sequence for chunk in plan.chunks]
    assert len(scheduler.waiting) == 2


def test_without_decodes_a_prompt_takes_the_whole_budget():
    scheduler = make_scheduler(blocks=60, pace=1.01, tokens_per_step=64)
    enqueue(scheduler, make_sequence(0, 100, tokens_max=101))
    assert [chunk.tokens for chunk in run_step(scheduler).chunks] == [64]
