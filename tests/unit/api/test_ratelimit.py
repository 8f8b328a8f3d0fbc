import pytest

from gateway.admission import bucket, cap, ratelimit
from gateway.admission.bucket import UNITS, Claim
from gateway.admission.cap import Cap
from gateway.admission.limiter import Decision, LimitState, Metric
from tests.demands import limit

TOKENS = LimitState(metric="tokens", limit=100, remaining=20, reset_ms=48_000)
WIDER = LimitState(metric="tokens", limit=90, remaining=30, reset_ms=1)
REQUESTS = LimitState(metric="requests", limit=60, remaining=59, reset_ms=1_000)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0ms"),
        (850, "850ms"),
        (1_000, "1s"),
        (6_500, "6.5s"),
        (60_000, "1m0s"),
        (90_000, "1m30s"),
        (59_999, "59.999s"),
        (7_205_000, "2h0m5s"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert ratelimit.duration(ms) == text


def test_the_tightest_bucket_speaks() -> None:
    headers = ratelimit.headers(Decision(states=(WIDER, TOKENS, REQUESTS)))
    assert headers == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "20",
        "x-ratelimit-reset-tokens": "48s",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
    }


def test_the_bucket_that_refused_speaks_before_a_tighter_one() -> None:
    headers = ratelimit.headers(Decision(refused=WIDER, retry_after_ms=1, states=(WIDER, TOKENS)))
    assert headers["x-ratelimit-limit-tokens"] == "90"


def test_without_buckets_there_is_nothing_to_tell() -> None:
    held = LimitState(metric="concurrency", limit=3, remaining=1)
    assert ratelimit.headers(Decision(states=(held,))) == {}


def test_a_refusal_names_the_limit_what_is_used_what_was_asked_and_the_wait() -> None:
    error = ratelimit.refusal(Decision(refused=TOKENS, retry_after_ms=36_000, states=(TOKENS, REQUESTS)), 80)
    assert (error.status, error.type, error.code) == (429, "tokens", "rate_limit_exceeded")
    assert (error.retry_after_ms, error.should_retry) == (36_000, True)
    assert "tokens per minute. Limit 100, used 80, requested 80. Try again in 36s." in error.message


def test_a_burst_is_told_where_it_is_not_the_limit() -> None:
    state = LimitState(metric="tokens", limit=100, burst=300, remaining=20, reset_ms=1)
    assert (
        "Limit 100 (burst 300), used 280, requested 80."
        in ratelimit.refusal(Decision(refused=state, retry_after_ms=1), 80).message
    )


def test_what_was_used_is_told_though_it_is_more_than_the_limit() -> None:
    state = cap.state(Cap(limit("day_tokens", 1), 1, 80), 4_000)
    assert "Limit 1, used 4000, requested 80." in ratelimit.refusal(Decision(refused=state), 80).message


def test_the_headers_of_a_bucket_in_debt_tell_of_none_left_and_the_message_of_the_debt() -> None:
    claim = Claim("k", "tokens", 60, 60, 10)
    refused = Decision(refused=bucket.state(claim, -5 * UNITS), retry_after_ms=15_000)
    assert ratelimit.headers(refused)["x-ratelimit-remaining-tokens"] == "0"
    assert "Limit 60, used 65, requested 10." in ratelimit.refusal(refused, 10).message


@pytest.mark.parametrize(
    ("metric", "kind", "asked", "numbers"),
    [
        ("concurrency", "requests", 1, "concurrent requests. Limit 3, used 3, requested 1."),
        ("queued_requests", "requests", 1, "queued requests. Limit 3, used 3, requested 1."),
        ("queued_tokens", "tokens", 80, "queued tokens. Limit 3, used 3, requested 80."),
    ],
)
def test_a_cap_that_is_full(metric: Metric, kind: str, asked: int, numbers: str) -> None:
    state = LimitState(metric=metric, limit=3, remaining=0)
    error = ratelimit.refusal(Decision(refused=state, retry_after_ms=9_000, states=(state,)), asked)
    assert (error.status, error.type, error.code, error.should_retry) == (429, kind, "rate_limit_exceeded", True)
    assert numbers in error.message


@pytest.mark.parametrize(("metric", "asked"), [("day_tokens", 80), ("month_cost", 7_000)])
def test_a_budget_that_is_spent_is_no_matter_of_waiting(metric: Metric, asked: int) -> None:
    state = LimitState(metric=metric, limit=50, remaining=10)
    error = ratelimit.refusal(Decision(refused=state, states=(state, TOKENS)), asked)
    assert (error.status, error.type, error.code) == (429, "insufficient_quota", "insufficient_quota")
    assert (error.retry_after_ms, error.should_retry) == (None, False)
    assert f"Limit 50, used 40, requested {asked}." in error.message
    assert error.headers["x-ratelimit-limit-tokens"] == "100"


def test_what_can_never_pass_must_not_be_retried() -> None:
    error = ratelimit.refusal(Decision(refused=TOKENS), 101)
    assert error.should_retry is False
    assert "never" in error.message
