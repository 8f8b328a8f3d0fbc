"""What is remembered of empty buckets: as long as it is true, for what it is true of, and no longer than it may be."""

import pytest

from gateway.admission import claims
from gateway.admission.emptied import EMPTIED_MAX, KEPT_US, Emptied
from gateway.admission.limiter import Decision, Limit, LimitState
from tests.demands import KEY, demand, limit

RPM = limit("requests", 600, burst=10)
REFUSED = LimitState(metric="requests", limit=600, burst=10, remaining=0)
NOW = 7_000_000


def emptied(one: Limit = RPM, *, wait_ms: int | None = 100) -> Emptied:
    found = Emptied()
    [claim] = claims.of(demand(one)).buckets
    found.note(claim, Decision(refused=REFUSED, retry_after_ms=wait_ms), NOW)
    return found


def test_until_the_time_that_was_told_every_request_is_refused_with_what_is_left_of_it() -> None:
    found = emptied()
    for later_us, left_ms in ((0, 100), (1, 100), (1_000, 99), (99_999, 1)):
        known = found.find((limit("tokens", 5), RPM), NOW + later_us)
        assert known is not None
        assert (known.refused, known.retry_after_ms) == (REFUSED, left_ms)
    assert found.find((RPM,), NOW + 100_000) is None


def test_a_long_wait_is_remembered_for_a_moment_and_told_as_it_is() -> None:
    found = emptied(wait_ms=60_000)
    known = found.find((RPM,), NOW + KEPT_US - 1)
    assert known is not None
    assert known.retry_after_ms == 60_000 - KEPT_US // 1_000 + 1
    assert found.find((RPM,), NOW + KEPT_US) is None


@pytest.mark.parametrize(
    "other",
    [
        limit("requests", 601, burst=10),
        limit("requests", 600, burst=11),
        limit("requests", None),
        limit("requests", 600, burst=10, key=KEY),
        limit("requests", 600, burst=10, enforced=False),
    ],
    ids=["rate", "burst", "unlimited", "another bucket", "shadow"],
)
def test_it_is_true_of_that_limit_alone(other: Limit) -> None:
    assert emptied().find((other,), NOW) is None


def test_of_tokens_nothing_is_remembered_because_the_next_may_want_fewer() -> None:
    tokens = limit("tokens", 600)
    assert emptied(tokens).find((tokens,), NOW) is None


def test_nothing_is_remembered_of_what_waiting_does_not_help() -> None:
    assert emptied(wait_ms=None).find((RPM,), NOW) is None


def test_a_request_that_was_given_back_opens_all() -> None:
    found = emptied()
    found.forget()
    assert found.find((RPM,), NOW) is None


@pytest.mark.parametrize("step_us", [-1, -3_600_000_000, 3_600_000_000])
def test_a_clock_that_steps_keeps_nobody_out(step_us: int) -> None:
    assert emptied().find((RPM,), NOW + step_us) is None


def test_it_is_bounded() -> None:
    found = Emptied()
    [claim] = claims.of(demand(RPM)).buckets
    for number in range(EMPTIED_MAX + 1):
        found.note(type(claim)(str(number), "requests", 600, 10, 1), Decision(refused=REFUSED, retry_after_ms=100), NOW)
    assert len(found._refusals) == 1
