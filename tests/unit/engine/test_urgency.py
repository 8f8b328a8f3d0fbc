"""Who gives way to whom when tiers meet in one engine, and the floor share that the less urgent keep."""

from tests.unit.engine.builders import BLOCK_SIZE, enqueue, make_load, make_scheduler, make_sequence, run_step, shape
from worker.engine.sequence import Sequence, Status
from worker.engine.service import OWED_TOKENS, Service

ROOMY = {"tokens_per_step": 64}


def cheap(arrival: int, prompt_len: int, *, tier: int = 1) -> Sequence:
    return make_sequence(arrival, prompt_len, tier=tier, tokens_max=prompt_len + 12)


def test_an_urgent_arrival_without_blocks_preempts_and_is_admitted_at_once():
    scheduler = make_scheduler(blocks=10, **ROOMY)
    first, second = cheap(0, 19), cheap(1, 15)
    enqueue(scheduler, first, second)
    run_step(scheduler)
    enqueue(scheduler, make_sequence(2, 15))
    plan = run_step(scheduler)
    assert plan.preempted == 1
    assert shape(plan) == [(0, 1), (2, 15)]  # the second had less to lose
    assert (second.status, second.preemptions, first.preemptions) == (Status.WAITING, 1, 0)


def test_an_urgent_arrival_without_a_place_preempts_one():
    scheduler = make_scheduler(sequences_max=3, **ROOMY)
    enqueue(scheduler, *(cheap(arrival, 6) for arrival in range(3)))
    run_step(scheduler)
    enqueue(scheduler, make_sequence(3, 5), make_sequence(4, 5))
    assert shape(run_step(scheduler)) == [(0, 1), (1, 1), (3, 5)]
    assert shape(run_step(scheduler)) == [(0, 1), (3, 1), (4, 5)]  # one in a step


def test_in_a_step_that_preempted_nobody_is_admitted_but_the_urgent_one():
    scheduler = make_scheduler(blocks=10, **ROOMY)
    enqueue(scheduler, make_sequence(0, 36, tier=1, tokens_max=40))
    run_step(scheduler)
    enqueue(scheduler, make_sequence(1, 4), cheap(2, 4), make_sequence(3, 4))
    assert shape(run_step(scheduler)) == [(1, 4)]
    assert shape(run_step(scheduler))[:2] == [(1, 1), (3, 4)]


def test_nobody_is_preempted_to_no_avail():
    scheduler = make_scheduler(blocks=10, **ROOMY)
    urgent, less = make_sequence(0, 27), cheap(1, 7)
    enqueue(scheduler, urgent, less)
    run_step(scheduler)  # 7 + 2 blocks
    enqueue(scheduler, make_sequence(2, 15))  # 4 blocks; there are 1 and what `less` holds
    plan = run_step(scheduler)
    assert (plan.preempted, less.status) == (0, Status.RUNNING)
    assert shape(plan) == [(0, 1), (1, 1)]


def test_the_watermark_holds_for_an_urgent_arrival_too():
    scheduler = make_scheduler(blocks=10, watermark=0.3, **ROOMY)
    enqueue(scheduler, make_sequence(0, 11), cheap(1, 15))
    run_step(scheduler)
    enqueue(scheduler, make_sequence(2, 19))  # 3 + 5 blocks would leave 2
    assert run_step(scheduler).preempted == 0


def test_equal_and_more_urgent_tiers_do_not_give_way():
    scheduler = make_scheduler(sequences_max=2, **ROOMY)
    enqueue(scheduler, make_sequence(0, 5, tier=1), make_sequence(1, 5, tier=0))
    run_step(scheduler)
    enqueue(scheduler, make_sequence(2, 5, tier=1), make_sequence(3, 5, tier=2))
    for _ in range(3):
        plan = run_step(scheduler)
        assert (plan.preempted, {arrival for arrival, _ in shape(plan)}) == (0, {0, 1})


def test_an_urgent_arrival_is_not_kept_waiting_by_a_long_prompt_that_is_less_urgent():
    scheduler = make_scheduler(tokens_per_step=16)
    enqueue(scheduler, cheap(0, 100))
    assert shape(run_step(scheduler)) == [(0, 16)]
    enqueue(scheduler, make_sequence(1, 10))
    assert shape(run_step(scheduler)) == [(1, 10), (0, 6)]


def test_a_preempted_stream_resumes_when_the_urgent_one_has_ended():
    scheduler = make_scheduler(blocks=8, **ROOMY)
    victim, urgent = cheap(0, 15), make_sequence(1, 23)
    enqueue(scheduler, victim)
    run_step(scheduler)
    enqueue(scheduler, urgent)
    run_step(scheduler)
    run_step(scheduler)
    assert victim.status is Status.WAITING
    scheduler.release(urgent)
    (again,) = shape(run_step(scheduler))
    assert again[0] == 0
    assert len(victim.tokens) == 17  # it has its token back, and one more


def owe(service: Service, tier: int) -> None:
    """Serve the most urgent tier until the other is owed a turn."""
    for number in (0, tier):
        service.arrived(number, "acme")
    while not service.owed(tier):
        service.charge(0, "acme", input_tokens=1_000)


def test_a_tier_that_is_owed_its_floor_share_goes_first_and_once_in_a_step():
    service = Service()
    owe(service, 1)
    scheduler = make_scheduler(service=service, **ROOMY)
    enqueue(scheduler, make_sequence(0, 5), make_sequence(1, 5), cheap(2, 5), cheap(3, 5))
    assert [sequence.arrival for sequence in scheduler.schedule().admitted] == [2, 0, 1, 3]


def test_a_prompt_that_was_begun_goes_on_when_its_tier_is_owed_its_floor_share():
    service = Service()
    service.arrived(2, "acme")
    scheduler = make_scheduler(service=service)
    begun, beside = cheap(0, 40, tier=2), cheap(1, 8, tier=2)
    enqueue(scheduler, begun)
    run_step(scheduler)
    enqueue(scheduler, beside, make_sequence(2, 20), make_sequence(3, 20))
    assert shape(run_step(scheduler)) == [(2, 16)]
    owe(service, 2)
    plan = run_step(scheduler)
    assert (shape(plan), plan.admitted) == ([(0, 16)], [])
    assert (begun.rank, beside.status) == (0, Status.WAITING)


def test_what_is_owed_its_floor_share_and_has_no_room_keeps_no_urgent_arrival_waiting():
    service = Service()
    scheduler = make_scheduler(blocks=20, service=service, **ROOMY)
    cheap_one, urgent = cheap(0, 19), make_sequence(1, 15, tokens_max=60)
    enqueue(scheduler, cheap_one, urgent)
    run_step(scheduler)  # 5 + 4 blocks
    owe(service, 2)
    large = cheap(2, 60, tier=2)
    enqueue(scheduler, large, make_sequence(3, 7), make_sequence(4, 7))
    plan = run_step(scheduler)
    assert (plan.preempted, shape(plan)) == (1, [(1, 1), (3, 7)])
    for _ in range(3):  # nobody is left to give way: what is free is for the large one
        assert run_step(scheduler).admitted == []
    scheduler.release(urgent)
    assert run_step(scheduler).admitted[0] is large


def test_a_prompt_on_the_floor_share_asks_for_the_budget_of_the_most_urgent_and_so_do_arrivals_after_it():
    service = Service()
    scheduler = make_scheduler(service=service)
    enqueue(scheduler, cheap(0, 100))
    run_step(scheduler)
    owe(service, 2)
    enqueue(scheduler, cheap(1, 4, tier=2), make_sequence(2, 5))
    assert shape(run_step(scheduler)) == [(1, 4), (2, 5), (0, 7)]


def test_what_runs_on_the_floor_share_gives_way_to_nobody_less_urgent_than_the_most():
    service = Service()
    owe(service, 1)
    scheduler = make_scheduler(sequences_max=2, service=service, **ROOMY)
    on_floor, other = cheap(0, 5), cheap(1, 5)
    enqueue(scheduler, on_floor, other)
    run_step(scheduler)
    assert (on_floor.rank, other.rank) == (0, 1)
    service.charge(1, "acme", input_tokens=int(2 * OWED_TOKENS))
    assert not service.owed(1)
    assert scheduler.loads() == {
        0: make_load(running=1, waiting=0, blocks=2),
        1: make_load(running=1, waiting=0, blocks=2),
    }
    enqueue(scheduler, make_sequence(2, 5), make_sequence(3, 5))
    run_step(scheduler)
    run_step(scheduler)
    assert (on_floor.status, other.status) == (Status.RUNNING, Status.WAITING)


def test_nobody_gives_way_while_its_tier_is_owed_its_floor_share():
    service = Service()
    scheduler = make_scheduler(sequences_max=1, service=service, **ROOMY)
    running = cheap(0, 5)
    service.arrived(1, "acme")
    enqueue(scheduler, running)
    run_step(scheduler)
    owe(service, 1)
    enqueue(scheduler, make_sequence(1, 5))
    assert run_step(scheduler).preempted == 0
    service.charge(1, "acme", input_tokens=int(4 * OWED_TOKENS))
    assert run_step(scheduler).preempted == 1
    assert running.status is Status.WAITING


def test_loads_count_what_only_one_tier_holds():
    scheduler = make_scheduler(**ROOMY)
    common = make_sequence(0, 4 * BLOCK_SIZE)
    enqueue(scheduler, common)
    run_step(scheduler)
    same = make_sequence(0, 4 * BLOCK_SIZE + 1, tier=2)  # of the same salt: finds four blocks
    same.arrival = 1
    enqueue(scheduler, same)
    run_step(scheduler)
    assert same.table.ids[:4].tolist() == common.table.ids[:4].tolist()
    assert scheduler.loads() == {
        0: make_load(running=1, waiting=0, blocks=1),
        2: make_load(running=1, waiting=0, blocks=1),
    }
