import uuid

import pytest

from gateway.admission import ratelimit
from gateway.admission.limiter import BucketState, Decision, Demand

DEMAND = Demand(
    request_id=uuid.UUID(int=1),
    tenant_id=uuid.UUID(int=2),
    api_key_id=uuid.UUID(int=3),
    requests=1,
    tokens=80,
    limits=(),
)
TOKENS = BucketState(metric="tokens", limit=100, remaining=20, reset_ms=48_000)
WIDER = BucketState(metric="tokens", limit=90, remaining=30, reset_ms=1)
REQUESTS = BucketState(metric="requests", limit=60, remaining=59, reset_ms=1_000)


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
    headers = ratelimit.headers(Decision(refused_by=None, retry_after_ms=None, buckets=(WIDER, TOKENS, REQUESTS)))
    assert headers == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "20",
        "x-ratelimit-reset-tokens": "48s",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
    }


def test_without_buckets_there_is_nothing_to_tell() -> None:
    assert ratelimit.headers(Decision(refused_by=None, retry_after_ms=None, buckets=())) == {}


def test_a_refusal_names_the_limit_the_rest_and_the_wait() -> None:
    error = ratelimit.refusal(Decision(refused_by="tokens", retry_after_ms=36_000, buckets=(TOKENS, REQUESTS)), DEMAND)
    assert (error.status, error.type, error.code) == (429, "tokens", "rate_limit_exceeded")
    assert (error.retry_after_ms, error.should_retry) == (36_000, True)
    for told in ("100", "20", "80", "36s"):
        assert told in error.message


def test_what_can_never_pass_must_not_be_retried() -> None:
    error = ratelimit.refusal(Decision(refused_by="tokens", retry_after_ms=None, buckets=()), DEMAND)
    assert error.should_retry is False
    assert "never" in error.message
