import uuid
from dataclasses import replace

import pytest

from gateway.admission import bucket
from gateway.admission.bucket import LIMIT_MAX, UNITS, Claim, Level
from gateway.admission.limiter import BucketLimit, Demand

MINUTE_US = 60_000_000


def claim(per_minute: int = 60, burst: int = 60, amount: int = 1, key: str = "t/tokens") -> Claim:
    return Claim(key, "tokens", per_minute, burst, amount)


def demand(*limits: BucketLimit, tokens: int = 10) -> Demand:
    return Demand(
        request_id=uuid.uuid4(),
        tenant_id=uuid.uuid4(),
        api_key_id=uuid.uuid4(),
        requests=1,
        tokens=tokens,
        limits=limits,
    )


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
    verdict = bucket.decide([Level(60 * UNITS, 0)], [claim(amount=61)], 0)
    assert verdict.refused == 0
    assert verdict.retry_after_us is None


def test_the_wait_is_exactly_what_is_missing() -> None:
    one = claim(per_minute=7, burst=7, amount=5)
    verdict = bucket.decide([Level(2 * UNITS, 0)], [one], 0)
    assert verdict.retry_after_us is not None
    early, punctual = verdict.retry_after_us - 1, verdict.retry_after_us
    assert bucket.decide([Level(2 * UNITS, 0)], [one], early).refused == 0
    assert bucket.decide([Level(2 * UNITS, 0)], [one], punctual).refused is None


def test_the_bucket_with_the_longest_wait_speaks() -> None:
    slow = claim(per_minute=1, burst=10, amount=5, key="b")
    fast = claim(per_minute=600, burst=10, amount=5, key="a")
    assert bucket.decide([Level(0, 0), Level(0, 0)], [fast, slow], 0).refused == 1


def test_a_refusal_takes_nothing_from_any_bucket() -> None:
    plenty, empty = Level(60 * UNITS, 0), Level(0, 0)
    verdict = bucket.decide([plenty, empty], [claim(key="a"), claim(key="b")], 0)
    assert verdict.refused == 1
    assert verdict.levels == (plenty, empty)


def test_a_refund_never_lowers_a_bucket_whose_limit_was_raised() -> None:
    assert bucket.refund(Level(50 * UNITS, 0), claim(burst=10), 5).units == 50 * UNITS


def test_a_refund_does_not_overfill() -> None:
    assert bucket.refund(Level(8 * UNITS, 0), claim(burst=10), 5).units == 10 * UNITS


def test_debt_is_bounded_by_one_burst() -> None:
    assert bucket.debit(Level(0, 0), claim(burst=10), 1_000, 0).units == -10 * UNITS


def test_claims_are_in_key_order_and_leave_out_what_is_unlimited() -> None:
    asked = demand(
        BucketLimit(metric="tokens", scope="tenant:b", per_minute=5, burst=None),
        BucketLimit(metric="requests", scope="tenant:b", per_minute=7, burst=9),
        BucketLimit(metric="tokens", scope="key:a", per_minute=None, burst=None),
        tokens=33,
    )
    requests, tokens = bucket.claims(asked)
    assert requests == Claim("tenant:b/requests", "requests", 7, 9, 1)
    assert tokens == Claim("tenant:b/tokens", "tokens", 5, 5, 33)
    assert tokens.refundable
    assert not requests.refundable


def test_zero_blocks_and_null_does_not() -> None:
    zero = BucketLimit(metric="tokens", scope="t", per_minute=0, burst=None)
    unlimited = BucketLimit(metric="requests", scope="t", per_minute=None, burst=None)
    assert bucket.blocked(demand(unlimited, zero)) == "tokens"
    assert bucket.blocked(demand(unlimited)) is None


def test_two_limits_on_one_bucket_are_a_fault_of_ours() -> None:
    limit = BucketLimit(metric="tokens", scope="t", per_minute=5, burst=None)
    with pytest.raises(AssertionError):
        bucket.claims(demand(limit, limit))


def test_state_is_what_a_client_may_rely_on() -> None:
    one = claim(per_minute=60, burst=10)
    state = bucket.state(one, 3 * UNITS + 1)
    assert (state.limit, state.remaining) == (60, 3)
    assert state.reset_ms == 7_000
    assert bucket.state(one, -5 * UNITS).remaining == 0
    assert bucket.state(one, 10 * UNITS).reset_ms == 0
    assert bucket.state(replace(one, burst=10), 12 * UNITS).reset_ms == 0
