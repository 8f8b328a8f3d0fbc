"""The arithmetic of the first token, on numbers that can be reckoned by hand."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dispatch.forecast import Forecast, Member, forecast
from gateway.dispatch.queues import NOTHING, Work
from shared import wire

# Ten places; 1,000 prompt tokens/s; steps of 0.1 s; answers of 20 tokens: a place comes free each 0.2 s when full.
LOAD = wire.WorkerLoad(
    places=10,
    tokens_free=10_000,
    tokens_held=0,
    prompt_tokens_left=0,
    prompt_tokens_per_s=1_000,
    step_s=0.1,
    output_tokens_mean=20,
    cached_share=0,
    floor_share=0.05,
    tiers=(),
)
ONE = Work(1, 1, 100)


def requests(count: int, *, tokens: int = 100) -> Work:
    return Work(count, count, count * tokens)


def running(*tiers: tuple[int, int], **changes: object) -> wire.WorkerLoad:
    work = tuple(wire.TierWork(tier=tier, running=count, waiting=0) for tier, count in tiers)
    return msgspec.structs.replace(LOAD, tiers=work, **changes)


def told(*loads: wire.WorkerLoad, tier: int = 0, ahead: Work = NOTHING, own: Work = ONE) -> Forecast | None:
    return forecast([Member(load, NOTHING) for load in loads], tier=tier, ahead=ahead, own=own)


def test_alone_there_is_only_the_own_prompt() -> None:
    assert told(LOAD) == Forecast(0.0, 0.1)


def test_prompts_ahead_are_computed_first_by_all_workers_together() -> None:
    assert told(LOAD, ahead=requests(5)) == Forecast(0.5, 0.1)
    assert told(LOAD, LOAD, ahead=requests(5)) == Forecast(0.25, 0.1)
    assert told(running(prompt_tokens_left=300)) == Forecast(0.3, 0.1)


def test_what_the_cache_has_is_not_computed() -> None:
    assert told(running(cached_share=0.75), ahead=requests(4)) == Forecast(0.1, 0.025)


def test_a_full_worker_is_waited_for() -> None:
    found = told(running((0, 10)), ahead=requests(4, tokens=1))
    assert found is not None
    assert found.added_s == pytest.approx(5 * 0.2)


def test_what_was_accepted_since_the_last_beat_counts() -> None:
    members = [Member(running((0, 6)), Work(4, 4, 400))]
    found = forecast(members, tier=0, ahead=NOTHING, own=ONE)
    assert found is not None
    assert found.added_s == pytest.approx(0.4)
    found = forecast([Member(running((0, 9)), Work(1, 1, 10))], tier=0, ahead=NOTHING, own=ONE)
    assert found is not None
    assert found.added_s == pytest.approx(1 / (9 / 2))


def test_what_has_ended_since_the_last_beat_holds_no_room() -> None:
    load = running((0, 2), tokens_free=50, tokens_held=800)
    first, second = (forecast([Member(load, Work(0, -n), n)], tier=0, ahead=NOTHING, own=ONE) for n in (0, 1))
    assert first is not None
    assert first.added_s > 0
    assert second == Forecast(0.0, 0.1)  # half of what was held is free
    alone = running((0, 1), tokens_free=0, tokens_held=850)
    assert forecast([Member(alone, Work(0, -1), 1)], tier=0, ahead=NOTHING, own=Work(1, 1, 850)) == Forecast(0.0, 0.85)


def test_places_are_freed_as_fast_as_ever_when_others_have_taken_over_since_the_last_beat() -> None:
    found = forecast([Member(running((0, 10)), NOTHING, 10)], tier=0, ahead=NOTHING, own=ONE)
    assert found == Forecast(0.2, 0.1)


def test_less_urgent_sequences_give_way() -> None:
    assert told(running((2, 10)), tier=0) == Forecast(0.0, 0.1)
    assert told(running((2, 10), tokens_free=0, tokens_held=5_000), tier=0) == Forecast(0.0, 0.1)


def test_a_less_urgent_tier_has_what_is_left_and_at_least_its_floor() -> None:
    found = told(running((0, 8), (2, 2)), tier=2)
    assert found is not None
    assert found.added_s == pytest.approx(1 / (0.2 * 10 / 2))
    found = told(running((0, 10)), tier=2)
    assert found is not None
    assert found.added_s == pytest.approx(1 / (0.05 * 10 / 2))


def test_room_is_also_a_matter_of_tokens() -> None:
    found = told(running((0, 5), tokens_free=100, tokens_held=1_000), own=requests(1, tokens=500))
    assert found is not None
    assert found.added_s == pytest.approx((400 / 200) / (5 / 2))


@pytest.mark.parametrize("unknown", ["step_s", "output_tokens_mean"])
def test_a_full_worker_of_unknown_pace_is_no_reason(unknown: str) -> None:
    assert told(running((0, 10), **{unknown: 0})) is None


def test_without_a_worker_or_a_rate_nothing_is_made_up() -> None:
    assert told() is None
    assert told(running(prompt_tokens_per_s=0), ahead=requests(9)) == Forecast(0.0, 0.0)
    assert told(LOAD, running(prompt_tokens_per_s=0), ahead=requests(5)) == Forecast(0.25, 0.1)


def test_one_that_no_worker_could_ever_hold_is_not_made_to_wait_for_it() -> None:
    assert told(LOAD, own=Work(1, 64, 100)) is None


counts = st.integers(0, 50)


@settings(max_examples=60)
@given(running_now=st.lists(counts, min_size=3, max_size=3), ahead=counts, more=counts, tier=st.integers(0, 2))
def test_more_ahead_and_less_urgency_never_make_it_sooner(
    running_now: list[int], ahead: int, more: int, tier: int
) -> None:
    load = running(*enumerate(running_now), places=60)
    fewer, many = told(load, tier=tier, ahead=requests(ahead)), told(load, tier=tier, ahead=requests(ahead + more))
    later = told(load, tier=tier + 1, ahead=requests(ahead))
    if fewer is None:
        assert many is None
        assert later is None
        return
    assert fewer.added_s >= 0
    assert many is None or many.added_s >= fewer.added_s
    assert later is None or later.added_s >= fewer.added_s
    doubled = told(load, load, tier=tier, ahead=requests(ahead))
    assert doubled is not None
    assert doubled.added_s <= fewer.added_s
