"""Who is let in, and what the others hear: with a fleet of one worker, whose numbers are easy.

Ten places, 1,000 prompt tokens/s, steps of 0.1 s and answers of 20 tokens: a full worker has a place free each 0.2 s.
"""

import contextlib
from collections.abc import Generator

import pytest

from gateway.dispatch.fleet import FleetView
from gateway.dispatch.overload import RETRY_S_MAX, RETRY_S_MIN, SPREAD, Overload
from gateway.dispatch.terms import Terms
from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, Unavailable
from shared import wire
from tests.unit.dispatch.samples import beat, job
from tests.unit.dispatch.test_fleet import card
from tests.unit.dispatch.test_forecast import running
from tests.unit.dispatch.test_queues import of

POOL = "default"


def overload(load: wire.WorkerLoad | None = None, *, random: float = 0.0) -> Overload:
    fleet = FleetView(silence_s=1.5)
    fleet.put_card("card", card())
    fleet.on_beat(beat(load=load or running((0, 10))), 0.0)
    return Overload(fleet, random=lambda: random)


@contextlib.contextmanager
def queued(state: Overload, count: int, tenant: str = "others", *, tokens: int = 3) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(state.queues.holding(of(tenant, tokens=tokens), POOL))
        yield


def refused(state: Overload, terms: Terms, wanted: wire.Job | None = None) -> GatewayError | None:
    try:
        state.check(wanted or job(), POOL, terms, 0.0)
    except GatewayError as error:
        return error
    return None


def test_what_would_be_in_time_is_let_in_and_what_would_not_is_told_when() -> None:
    state = overload()
    terms = Terms(wait_s=60, added_s=1.0)
    with queued(state, 4, "a"), queued(state, 4, "b"):
        assert refused(state, terms) is None  # each of the others has one turn before: 3 places, 0.6 s
        with queued(state, 40, "tenant"):
            error = refused(state, terms)
    assert isinstance(error, QueueFull)


def test_the_advice_is_the_excess_and_grows_with_the_load() -> None:
    state, told_ms = overload(), list[int]()
    for others in (5, 9, 29):
        with contextlib.ExitStack() as stack:
            for number in range(others):
                stack.enter_context(queued(state, 1, f"t{number}"))
            error = refused(state, Terms(wait_s=60, added_s=0.5))
        assert isinstance(error, Unavailable)
        assert (error.status, error.code, error.should_retry) == (503, "server_is_overloaded", True)
        assert error.retry_after_ms is not None
        told_ms.append(error.retry_after_ms)
    assert told_ms == [700, 1_500, 5_500]


def test_advice_is_bounded_and_spread() -> None:
    full = running((0, 10), output_tokens_mean=100_000)
    for random, seconds in ((0.0, RETRY_S_MAX), (0.9, RETRY_S_MAX)):
        error = refused(overload(full, random=random), Terms(wait_s=5))
        assert error is not None
        assert error.retry_after_ms == seconds * 1_000
    barely = Terms(wait_s=60, added_s=0.19)
    for random in (0.0, 0.5):
        error = refused(overload(random=random), barely)
        assert error is not None
        assert error.retry_after_ms == round(RETRY_S_MIN * (1 + SPREAD * random) * 1_000)


def test_a_tenant_that_stands_in_its_own_way_hears_429_and_others_are_let_in() -> None:
    state, terms = overload(), Terms(wait_s=60, added_s=2.0)
    with queued(state, 100, "flood"):
        error = refused(state, terms, of("flood"))
        assert isinstance(error, QueueFull)
        assert (error.status, error.code, error.should_retry) == (429, "slow_down", True)
        assert refused(state, terms, of("modest")) is None


def test_a_client_that_would_have_given_up_is_refused_and_one_for_whom_it_is_hopeless_is_told() -> None:
    state = overload(running((0, 5)))
    assert refused(state, Terms(wait_s=60, client_s=0.2), of("t", tokens=100)) is None
    error = refused(state, Terms(wait_s=60, client_s=0.2), of("t", tokens=1_000))
    assert isinstance(error, Unavailable)
    assert error.should_retry is False
    with queued(state, 1, tokens=500):
        error = refused(state, Terms(wait_s=60, client_s=0.2), of("t", tokens=100))
    assert isinstance(error, Unavailable)
    assert error.should_retry is True


def test_a_long_prompt_on_an_idle_fleet_is_no_overload() -> None:
    assert refused(overload(running()), Terms(wait_s=60, added_s=1.0), of("t", tokens=9_000)) is None


def test_more_than_the_tier_may_wait_is_refused_though_no_first_token_is_promised() -> None:
    state = overload()
    assert refused(state, Terms(wait_s=0.3)) is None
    error = refused(state, Terms(wait_s=0.1))
    assert isinstance(error, Unavailable)


@pytest.mark.parametrize(
    "loads",
    [(None, running((0, 10))), (running((0, 10), step_s=0),), (running((0, 10), output_tokens_mean=0),), ()],
    ids=["one is silent", "no steps", "no outputs", "nobody"],
)
def test_nothing_is_refused_for_want_of_knowledge(loads: tuple[wire.WorkerLoad | None, ...]) -> None:
    fleet = FleetView(silence_s=1.5)
    fleet.put_card("card", card())
    for number, load in enumerate(loads):
        fleet.on_beat(beat(f"w{number}", load=load), 0.0)
    state = Overload(fleet, random=lambda: 0.0)
    with queued(state, 1_000):
        assert refused(state, Terms(wait_s=0.01, added_s=0.01, client_s=0.01)) is None


@pytest.mark.parametrize(
    ("bounds", "passes"),
    [
        ({"queued_requests_max": None}, True),
        ({"queued_requests_max": 4}, True),
        ({"queued_requests_max": 3}, False),
        ({"queued_requests_max": 0}, False),
        ({"queued_tokens_max": 33}, True),
        ({"queued_tokens_max": 32}, False),
        ({"queued_tokens_max": 0}, False),
    ],
)
def test_a_tiers_queue_is_bounded_over_all_tenants(bounds: dict[str, int | None], *, passes: bool) -> None:
    state = overload()
    with queued(state, 2, "a", tokens=10), queued(state, 1, "b", tokens=10):
        error = refused(state, Terms(wait_s=60, **bounds))
        assert (error is None) is passes
        assert passes or isinstance(error, QueueFull)


@pytest.mark.parametrize(
    ("bounds", "ever"),
    [
        ({"queued_requests_max": 0}, False),
        ({"queued_requests_max": 1}, True),
        ({"queued_tokens_max": 2}, False),
        ({"queued_tokens_max": 3}, True),
        ({"queued_requests_max": 1, "queued_tokens_max": 2}, False),
    ],
)
def test_a_request_larger_than_its_tiers_whole_queue_is_told_not_to_retry(
    bounds: dict[str, int | None], *, ever: bool
) -> None:
    state = overload()
    with queued(state, 1):
        error = refused(state, Terms(wait_s=60, **bounds), of("t", tokens=3))
    assert isinstance(error, QueueFull)
    assert error.should_retry is ever
    assert (error.retry_after_ms is not None) is ever


def test_a_pool_that_fails_is_left_alone_and_says_how_long() -> None:
    state = overload()
    for tenant in range(10):
        state.breakers.failed(POOL, f"t{tenant}", 0.0)
    error = refused(state, Terms(wait_s=60))
    assert isinstance(error, Unavailable)
    assert (error.retry_after_ms, error.should_retry) == (1_000, True)


def test_retries_beyond_the_budget_are_told_to_stop() -> None:
    state = overload()
    again = Terms(wait_s=60, retry=True)
    state.retries.failed("tenant", 0.0)
    refusals = [refused(state, again) for _ in range(4)]
    assert refusals[:3] == [None] * 3
    assert isinstance(refusals[3], QueueFull)
    assert refusals[3].should_retry is False
    assert refused(state, Terms(wait_s=60)) is None, "a first try is no retry"


def test_one_that_has_waited_in_vain_hears_whose_fault_it_is() -> None:
    state, terms = overload(), Terms(wait_s=2.0)
    with queued(state, 100, "tenant"):
        assert isinstance(state.late(job(), POOL, terms, 0.0), QueueFull)
    with queued(state, 1, "tenant"):
        assert isinstance(state.late(job(), POOL, terms, 0.0), DeadlineExceeded), "nothing but itself"
    with contextlib.ExitStack() as stack:
        for number in range(20):
            stack.enter_context(queued(state, 1, f"t{number}"))
        error = state.late(job(), POOL, terms, 0.0)
    assert isinstance(error, DeadlineExceeded)
    assert error.retry_after_ms == 2_200
    assert error.should_retry is True


def test_what_has_come_and_gone_since_the_beat_counts() -> None:
    state = overload(running((0, 5)))
    terms = Terms(wait_s=60, added_s=0.1)
    new = [job(f"n{number}") for number in range(5)]
    for one in new:
        state._fleet.accepted("w1", one)
    assert isinstance(refused(state, terms), Unavailable)
    state._fleet.ended("w1", new[0])
    assert refused(state, terms) is None, "it has gone again"
    state._fleet.accepted("w1", new[0])
    state._fleet.ended("w1", job("known to the beat"))
    assert refused(state, terms) is None
    state._fleet.accepted("w1", job("one more"))
    assert isinstance(refused(state, terms), Unavailable)
    state._fleet.on_beat(beat(load=running((0, 5))), 0.2)
    assert refused(state, terms) is None


def test_a_prompt_that_came_and_went_since_the_beat_is_not_waited_for() -> None:
    state, terms = overload(running((0, 1))), Terms(wait_s=60, added_s=1.0)
    long = of("t", tokens=5_000)
    state._fleet.accepted("w1", long)
    assert isinstance(refused(state, terms), Unavailable)
    state._fleet.ended("w1", long)
    assert refused(state, terms) is None
