import pytest
from msgspec.structs import replace

from gateway.admission import bucket
from gateway.admission.bucket import LIMIT_MAX, UNITS, Claim, Level

MINUTE_US = 60_000_000


def claim(per_minute: int = 60, burst: int = 60, amount: int = 1, key: str = "t/tokens") -> Claim:
    return Claim(key, "tokens", per_minute, burst, amount)


def test_refill_is_exact_at_rates_that_do_not_divide_a_minute() -> None:
    one = claim(per_minute=7_000_003, burst=LIMIT_MAX)
    level = Level(0, 0)
    for now_us in range(1, 1_001):
        level = bucket.refill(level, one, now_us)
    assert level.units == 7_000_003 * 1_000
    assert level == bucket.refill(Level(0, 0), one, 1_000)


def test_refill_after_idle_years_is_full_and_no_more() -> None:
    century_us = 100 * 365 * 24 * 3_600 * 1_000_000
    assert bucket.refill(Level(0, 0), claim(burst=5), century_us).units == 5 * UNITS


def test_a_clock_that_steps_back_refills_nothing_and_does_not_count_time_twice() -> None:
    level = bucket.refill(Level(0, MINUTE_US), claim(), 0)
    assert level == Level(0, MINUTE_US)


def test_a_lowered_burst_cuts_the_level() -> None:
    assert bucket.refill(Level(100 * UNITS, 0), claim(burst=10), 0).units == 10 * UNITS


def test_more_than_the_burst_can_never_pass() -> None:
    assert bucket.wait_us(Level(60 * UNITS, 0), claim(amount=61)) is None


def test_the_wait_is_exactly_what_is_missing() -> None:
    one = claim(per_minute=7, burst=7, amount=5)
    wait_us = bucket.wait_us(Level(2 * UNITS, 0), one)
    assert wait_us is not None
    assert not bucket.fits(bucket.refill(Level(2 * UNITS, 0), one, wait_us - 1), one)
    assert bucket.fits(bucket.refill(Level(2 * UNITS, 0), one, wait_us), one)


def test_a_refund_never_lowers_a_bucket_whose_limit_was_raised() -> None:
    assert bucket.refund(Level(50 * UNITS, 0), claim(burst=10), 5).units == 50 * UNITS


def test_a_refund_does_not_overfill() -> None:
    assert bucket.refund(Level(8 * UNITS, 0), claim(burst=10), 5).units == 10 * UNITS


@pytest.mark.parametrize(
    ("tokens_used", "started", "tokens", "requests"),
    [(0, False, 9, 9), (0, True, 9, 0), (4, False, 5, 0), (4, True, 5, 0), (12, True, 0, 0), (-3, True, 9, 0)],
)
def test_unused_tokens_go_back_and_a_request_only_if_it_never_started(
    tokens_used: int, started: bool, tokens: int, requests: int
) -> None:
    one = claim(amount=9)
    assert bucket.unused(one, tokens_used, started=started) == tokens
    assert bucket.unused(replace(one, metric="requests"), tokens_used, started=started) == requests


def test_state_is_what_a_client_may_rely_on() -> None:
    one = claim(per_minute=60, burst=10)
    state = bucket.state(one, 3 * UNITS + 1)
    assert (state.limit, state.remaining) == (60, 3)
    assert state.reset_ms == 7_000
    assert bucket.state(one, -5 * UNITS).remaining == -5
    assert bucket.state(one, 10 * UNITS).reset_ms == 0
    assert bucket.state(replace(one, burst=10), 12 * UNITS).reset_ms == 0
