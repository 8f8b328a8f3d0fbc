"""What every back end of `Limiter` does, in Postgres as in this process."""

import time
import uuid

import msgspec
import pytest

from gateway.admission.limiter import Metric
from gateway.admission.local_limiter import LocalLimiter
from gateway.admission.pg_limiter import PgLimiter
from tests.demands import KEY, MODEL, again, demand, limit
from tests.integration.test_limiter import asked, settle


@pytest.fixture(params=["postgres", "local"])
async def any_limiter(request: pytest.FixtureRequest, limiter: PgLimiter) -> PgLimiter | LocalLimiter:
    return limiter if request.param == "postgres" else LocalLimiter(lambda: time.monotonic_ns() // 1_000)


async def test_a_reservation_takes_and_a_settlement_gives_back(any_limiter: PgLimiter | LocalLimiter) -> None:
    first = asked(90)
    decision = await any_limiter.admit(first)
    assert decision.refused_by is None
    [state] = decision.states
    assert (state.metric, state.limit) == ("tokens", 100)
    assert 10 <= state.remaining < 90
    refused = await any_limiter.admit(asked(90))
    assert refused.refused_by == "tokens"
    assert refused.retry_after_ms is not None
    assert 0 < refused.retry_after_ms <= 48_000
    await settle(any_limiter, first.request_id, 5)
    assert (await any_limiter.admit(asked(90))).refused_by is None


async def test_a_refusal_takes_nothing_from_the_limits_that_had_room(any_limiter: PgLimiter | LocalLimiter) -> None:
    for _ in range(3):
        refused = await any_limiter.admit(asked(1_000, tpm=2_000, rpm=2, burst=999))
        assert refused.refused_by == "tokens"
        assert refused.retry_after_ms is None
    for _ in range(2):
        assert (await any_limiter.admit(asked(1, tpm=2_000, rpm=2, burst=999))).refused_by is None
    assert (await any_limiter.admit(asked(1, tpm=2_000, rpm=2, burst=999))).refused_by == "requests"


async def test_admission_is_idempotent(any_limiter: PgLimiter | LocalLimiter) -> None:
    one = asked(60)
    for _ in range(3):
        assert (await any_limiter.admit(one)).refused_by is None
    assert (await any_limiter.admit(asked(30))).refused_by is None


async def test_settling_twice_or_the_unknown_refunds_once(any_limiter: PgLimiter | LocalLimiter) -> None:
    kept, refunded = asked(50, tpm=1, burst=100), asked(50, tpm=1, burst=100)
    for one in (kept, refunded):
        assert (await any_limiter.admit(one)).refused_by is None
    for _ in range(3):
        await settle(any_limiter, refunded.request_id, 0)
        await settle(any_limiter, uuid.uuid4(), 0)
    assert (await any_limiter.admit(asked(55, tpm=1, burst=100))).refused_by == "tokens"
    assert (await any_limiter.admit(asked(50, tpm=1, burst=100))).refused_by is None


async def test_zero_refuses_for_ever_and_null_never(any_limiter: PgLimiter | LocalLimiter) -> None:
    refused = await any_limiter.admit(asked(1, tpm=0))
    assert (refused.refused_by, refused.retry_after_ms) == ("tokens", None)
    unlimited = await any_limiter.admit(asked(10**12, tpm=None))
    assert (unlimited.refused_by, unlimited.states) == (None, ())


async def test_a_request_that_was_made_is_not_refunded(any_limiter: PgLimiter | LocalLimiter) -> None:
    one = asked(10, tpm=None, rpm=1)
    assert (await any_limiter.admit(one)).refused_by is None
    any_limiter.started(one.request_id)
    await settle(any_limiter, one.request_id, 0)
    assert (await any_limiter.admit(again(one))).refused_by == "requests"


async def test_a_request_that_nobody_started_leaves_nothing(any_limiter: PgLimiter | LocalLimiter) -> None:
    one = asked(10, tpm=10, rpm=1)
    for _ in range(3):
        assert (await any_limiter.admit(one)).refused_by is None
        await settle(any_limiter, one.request_id, 0)
        one = again(one)


@pytest.mark.parametrize("metric", ["requests", "tokens", "concurrency", "queued_requests", "queued_tokens"])
@pytest.mark.parametrize("level", ["tenant", "key", "model", "key and model"])
async def test_every_limit_holds_at_every_level(
    any_limiter: PgLimiter | LocalLimiter, metric: Metric, level: str
) -> None:
    held = limit(
        metric,
        30 if metric.endswith("tokens") else 3,
        key=KEY if "key" in level else None,
        model=MODEL if "model" in level else None,
    )
    for _ in range(3):
        assert (await any_limiter.admit(demand(held, tokens=10))).refused is None
    refused = await any_limiter.admit(demand(held, tokens=10))
    assert refused.refused is not None
    assert (refused.refused.metric, refused.refused.remaining < 10) == (metric, True)  # a bucket has filled meanwhile
    assert 0 < (refused.retry_after_ms or 0) <= 20_000
    other = demand(held, tokens=10, key=uuid.UUID(int=8), model=uuid.UUID(int=9))
    kept = tuple(one for one in other.limits if one.concerns(other.model_id) and "key" not in level)
    decision = await any_limiter.admit(msgspec.structs.replace(other, limits=kept))
    assert decision.refused_by == (metric if level == "tenant" else None)


@pytest.mark.parametrize("metric", ["concurrency", "queued_requests", "queued_tokens"])
async def test_a_place_comes_back(any_limiter: PgLimiter | LocalLimiter, metric: Metric) -> None:
    one = demand(limit(metric, 10 if metric == "queued_tokens" else 1), tokens=10)
    for _ in range(3):
        assert (await any_limiter.admit(one)).refused is None
        assert (await any_limiter.admit(again(one))).refused_by == metric
        await settle(any_limiter, one.request_id, 7)
        one = again(one)


@pytest.mark.parametrize("metric", ["concurrency", "queued_requests", "queued_tokens"])
async def test_what_has_started_waits_no_longer_but_is_open(
    any_limiter: PgLimiter | LocalLimiter, metric: Metric
) -> None:
    one = demand(limit(metric, 10 if metric == "queued_tokens" else 1), tokens=10)
    assert (await any_limiter.admit(one)).refused is None
    any_limiter.started(one.request_id)
    if isinstance(any_limiter, PgLimiter):
        await any_limiter._settling._write_starts()
    decision = await any_limiter.admit(again(one))
    assert decision.refused_by == ("concurrency" if metric == "concurrency" else None)


async def test_more_than_an_empty_cap_can_never_pass(any_limiter: PgLimiter | LocalLimiter) -> None:
    decision = await any_limiter.admit(demand(limit("queued_tokens", 9), tokens=10))
    assert (decision.refused_by, decision.retry_after_ms) == ("queued_tokens", None)


async def test_a_limit_in_shadow_mode_refuses_nobody(any_limiter: PgLimiter | LocalLimiter) -> None:
    limits = [limit(metric, 1, enforced=False) for metric in ("requests", "tokens", "concurrency", "queued_requests")]
    one = demand(*limits, limit("tokens", 100, key=KEY), tokens=10)
    first, second = await any_limiter.admit(one), await any_limiter.admit(again(one))
    assert (first.refused, first.missed) == (None, ("tokens",))
    assert (second.refused, set(second.missed)) == (None, {"requests", "tokens", "concurrency", "queued_requests"})
    assert [state.limit for state in second.states] == [100]
    await settle(any_limiter, one.request_id, 3)
