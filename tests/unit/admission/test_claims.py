import uuid

import pytest

from gateway.admission import claims
from gateway.admission.bucket import LIMIT_MAX, UNITS, Claim, Level
from gateway.admission.cap import AMOUNT_MAX
from gateway.admission.limiter import BUCKETS, BUDGETS, CAPS, RESERVED, Decision, Limit, LimitState, Metric
from tests.demands import KEY, MODEL, TENANT, demand, limit

LEASES_US = 15_000_000


def decide(*limits: Limit, tokens: int = 10, left: int = 0, held: int = 0) -> Decision:
    """Against buckets that all hold `left` and caps of which all is `held`."""
    wanted = claims.of(demand(*limits, tokens=tokens, cost_micro=tokens))
    levels = [Level(left * UNITS, 0)] * len(wanted.buckets)
    return claims.decision(wanted, claims.decide(wanted, levels, [held] * len(wanted.caps), 0, leases_us=LEASES_US))


def test_buckets_are_in_key_order_and_what_is_unlimited_makes_no_claim() -> None:
    wanted = claims.of(
        demand(
            limit("tokens", 5),
            limit("requests", 7, burst=9),
            limit("tokens", None, key=KEY),
            limit("concurrency", None),
            limit("concurrency", 3, model=MODEL),
            tokens=33,
        )
    )
    assert wanted.buckets == (
        Claim(f"tenant:{TENANT}/requests", "requests", 7, 9, 1),
        Claim(f"tenant:{TENANT}/tokens", "tokens", 5, 5, 33),
    )
    assert [(cap.metric, cap.allowed, cap.amount) for cap in wanted.caps] == [("concurrency", 3, 1)]


@pytest.mark.parametrize(
    ("metric", "amount"),
    [
        ("requests", 1),
        ("tokens", 10),
        ("concurrency", 1),
        ("queued_requests", 1),
        ("queued_tokens", 10),
        ("day_tokens", 10),
        ("month_cost", 777),
    ],
)
def test_what_each_metric_takes(metric: Metric, amount: int) -> None:
    assert demand(tokens=10, cost_micro=777).amount(metric) == amount


@pytest.mark.parametrize("metric", RESERVED)
def test_zero_is_none_and_null_is_unlimited(metric: Metric) -> None:
    zero = limit(metric, 0)
    assert claims.blocked(demand(limit("tokens", 5), zero)) == zero
    assert claims.never(zero) == Decision(
        refused=LimitState(metric=metric, limit=0, remaining=0),
        states=(LimitState(metric=metric, limit=0, remaining=0),),
    )
    assert claims.blocked(demand(limit(metric, None))) is None
    assert decide(limit(metric, None), tokens=10**18, held=10**18) == Decision()


@pytest.mark.parametrize("metric", RESERVED)
def test_in_shadow_mode_nobody_is_refused_and_each_miss_is_told(metric: Metric) -> None:
    for allowed in (0, 1):
        shadow = limit(metric, allowed, enforced=False)
        assert claims.blocked(demand(shadow)) is None
        assert decide(shadow, tokens=10, held=1) == Decision(missed=(metric,))


def test_a_shadow_limit_is_charged_only_for_what_it_would_let_through() -> None:
    wanted = claims.of(demand(limit("tokens", 9, enforced=False), limit("tokens", 90, key=KEY)))
    full = [Level(claim.burst * UNITS, 0) for claim in wanted.buckets]
    verdict = claims.decide(wanted, full, (), 0, leases_us=LEASES_US)
    assert {claim.key: level.units // UNITS for claim, level in zip(wanted.buckets, verdict.levels, strict=True)} == {
        f"tenant:{TENANT}/tokens": 9,
        f"key:{KEY}/tokens": 80,
    }


def test_the_longest_wait_speaks() -> None:
    slow, fast = limit("tokens", 60, burst=100, key=KEY), limit("tokens", 600, burst=100)
    decision = decide(fast, slow)
    assert (decision.refused_by, decision.refused and decision.refused.limit) == ("tokens", 60)
    assert decision.retry_after_ms == 10_000


def test_what_waiting_does_not_help_speaks_before_any_wait() -> None:
    decision = decide(limit("tokens", 1, burst=100), limit("day_tokens", 9))
    assert (decision.refused_by, decision.retry_after_ms) == ("day_tokens", None)
    assert decide(limit("tokens", 9), limit("concurrency", 1), held=1).retry_after_ms is None


@pytest.mark.parametrize(("metric", "held"), [("concurrency", 3), ("queued_requests", 3), ("queued_tokens", 25)])
def test_a_full_cap_is_free_when_its_leases_have_run_out(metric: Metric, held: int) -> None:
    allowed = 30 if metric == "queued_tokens" else 3
    assert decide(limit(metric, allowed), held=held - (5 if metric == "queued_tokens" else 1)).refused is None
    decision = decide(limit(metric, allowed), held=held)
    assert (decision.refused_by, decision.retry_after_ms) == (metric, 15_000)
    assert decide(limit(metric, 3), tokens=31 if metric == "queued_tokens" else 10, held=0).refused_by == (
        metric if metric == "queued_tokens" else None
    )


def test_a_refusal_takes_nothing_from_any_limit() -> None:
    wanted = claims.of(demand(limit("tokens", 60), limit("tokens", 60, key=KEY), limit("concurrency", 5), tokens=20))
    before = [Level(60 * UNITS, 0), Level(0, 0)]
    verdict = claims.decide(wanted, before, [2], 0, leases_us=LEASES_US)
    assert verdict.refused is not None
    assert (list(verdict.levels), verdict.held) == (before, (2,))


def test_amounts_beyond_all_bounds_stay_inside_the_arithmetic() -> None:
    wanted = claims.of(demand(limit("tokens", 5), limit("day_tokens", 5), tokens=2**70))
    assert (wanted.buckets[0].amount, wanted.caps[0].amount) == (LIMIT_MAX + 1, AMOUNT_MAX + 1)


def test_two_limits_on_one_bucket_are_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError):
        claims.of(demand(limit("tokens", 5), limit("tokens", 5)))


def test_a_limit_concerns_its_model_alone() -> None:
    assert limit("tokens", 5).concerns(uuid.uuid4())
    assert limit("tokens", 5, model=MODEL).concerns(MODEL)
    assert not limit("tokens", 5, model=MODEL).concerns(uuid.uuid4())
    assert {*BUCKETS, *CAPS, *BUDGETS} == set(RESERVED)
