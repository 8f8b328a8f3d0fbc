"""What is remembered of empty buckets: as long as it is true, for what it is true of, and no longer than it may be."""

import pytest
from msgspec.structs import replace

from gateway.admission.limiter import Decision, Limit, LimitState
from gateway.admission.refusal_cache import KEPT_US, REFUSALS_MAX, RefusalCache
from tests.demands import KEY, limit

RPM = limit("requests", 600, burst=10)
TPM = limit("tokens", 5)
REFUSED = LimitState(metric="requests", limit=600, burst=10, remaining=0, reset_ms=900)
NOW = 7_000_000


def cache(one: Limit = RPM, *, wait_ms: int | None = 100) -> RefusalCache:
    found = RefusalCache()
    refused = replace(REFUSED, metric=one.metric)
    found.note((TPM, one), Decision(refused=refused, retry_after_ms=wait_ms, states=(refused,)), NOW)
    return found


def test_until_the_time_that_was_told_every_request_is_refused_with_what_is_left_of_it() -> None:
    found = cache()
    for later_us, left_ms in ((0, 100), (1, 100), (1_000, 99), (99_999, 1)):
        known = found.find((TPM, RPM), 1, NOW + later_us)
        assert known is not None
        state = replace(REFUSED, reset_ms=900 - later_us // 1_000)
        assert known == Decision(refused=state, retry_after_ms=left_ms, states=(state,))
    assert found.find((TPM, RPM), 1, NOW + 100_000) is None


def test_a_long_wait_is_remembered_for_a_moment_and_told_as_it_is() -> None:
    found = cache(wait_ms=60_000)
    known = found.find((TPM, RPM), 1, NOW + KEPT_US - 1)
    assert known is not None
    assert known.retry_after_ms == 60_000 - KEPT_US // 1_000 + 1
    assert found.find((TPM, RPM), 1, NOW + KEPT_US) is None


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
def test_it_is_true_of_these_limits_alone(other: Limit) -> None:
    assert cache().find((TPM, other), 1, NOW) is None
    assert cache().find((RPM,), 1, NOW) is None
    assert cache().find((TPM, RPM, limit("tokens", 0, key=KEY)), 1, NOW) is None


@pytest.mark.parametrize(
    ("tokens_max", "known"), [(55, True), (56, False), (1_000, False)], ids=["will be there", "not", "never"]
)
def test_a_request_whose_tokens_may_make_it_wait_longer_is_not_answered_from_memory(
    tokens_max: int, known: bool
) -> None:
    """45 are left, 100 a second come in, and the refusal says 100 ms."""
    found, limits = RefusalCache(), (limit("tokens", 6_000, burst=90), RPM)
    tokens = LimitState(metric="tokens", limit=6_000, burst=90, remaining=45, reset_ms=450)
    found.note(limits, Decision(refused=REFUSED, retry_after_ms=100, states=(REFUSED, tokens)), NOW)
    assert (found.find(limits, tokens_max, NOW) is not None) == known


def test_a_request_that_asks_for_more_than_a_full_bucket_may_be_smaller_than_that() -> None:
    found, limits = RefusalCache(), (limit("tokens", 6_000, burst=50), RPM)
    tokens = LimitState(metric="tokens", limit=6_000, burst=50, remaining=45, reset_ms=50)
    found.note(limits, Decision(refused=REFUSED, retry_after_ms=100, states=(REFUSED, tokens)), NOW)
    assert found.find(limits, 1_000, NOW) is not None


def test_beside_a_budget_nothing_is_remembered_because_it_may_refuse_until_its_period_ends() -> None:
    found, limits = RefusalCache(), (limit("day_tokens", 9), RPM)
    found.note(limits, Decision(refused=REFUSED, retry_after_ms=100, states=(REFUSED,)), NOW)
    assert found.find(limits, 1, NOW) is None


def test_of_tokens_nothing_is_remembered_because_the_next_may_want_fewer() -> None:
    tokens = limit("tokens", 600)
    assert cache(tokens).find((TPM, tokens), 1, NOW) is None


def test_nothing_is_remembered_of_what_waiting_does_not_help() -> None:
    assert cache(wait_ms=None).find((TPM, RPM), 1, NOW) is None


def test_a_request_that_was_given_back_opens_all() -> None:
    found = cache()
    found.forget()
    assert found.find((TPM, RPM), 1, NOW) is None


@pytest.mark.parametrize("step_us", [-1, -3_600_000_000, 3_600_000_000])
def test_a_clock_that_steps_keeps_nobody_out(step_us: int) -> None:
    assert cache().find((TPM, RPM), 1, NOW + step_us) is None


def test_the_cache_is_emptied_when_it_is_full() -> None:
    found = RefusalCache()
    for number in range(REFUSALS_MAX + 1):
        found.note((limit("requests", number),), Decision(refused=REFUSED, retry_after_ms=100), NOW)
    assert len(found._refusals) == 1
