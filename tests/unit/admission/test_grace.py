import pytest

from gateway.admission.grace import Grace
from gateway.admission.limiter import NOTHING, Demand, Used
from gateway.errors import Unavailable
from tests.demands import MODEL, TENANT, again, demand, limit

MINUTE_US = 60_000_000


class Away:
    """A gateway without Postgres, a minute after it began."""

    def __init__(self, *, gateways: int = 1, held: tuple[Demand, ...] = ()) -> None:
        self.now_us = 0
        self.grace = Grace(lambda: self.now_us, budget_s=60)
        self.grace.start(gateways, [(one, True) for one in held], answered_us=0)
        self.now_us = MINUTE_US

    def admits(self, one: Demand) -> bool:
        return self.grace.admit(one).refused is None

    def owed(self) -> dict[str, int]:
        return {claim.key.removeprefix(f"tenant:{TENANT}/"): claim.amount for claim in self.grace.take_debts()}


def test_the_share_fills_from_postgres_s_last_answer_and_not_from_the_request_that_missed_it() -> None:
    now_us = 5 * MINUTE_US
    grace = Grace(lambda: now_us, budget_s=60)
    grace.start(2, answered_us=now_us - MINUTE_US // 60)
    one = demand(limit("requests", 240))  # two a second for this gateway
    assert [grace.admit(again(one)).refused is None for _ in range(3)] == [True, True, False]


def test_what_was_used_is_owed_and_what_nobody_started_is_not() -> None:
    away = Away()
    used, left = (demand(limit("tokens", 100), limit("requests", 60), tokens=20) for _ in range(2))
    assert away.admits(used)
    assert away.admits(left)
    away.grace.started(used.request_id)
    assert away.grace.settle(used.request_id, Used(7))
    assert away.grace.settle(left.request_id, NOTHING)
    assert not away.grace.settle(left.request_id, NOTHING)
    assert away.owed() == {"tokens": 7, "requests": 1}
    assert away.owed() == {}


def test_the_debt_is_the_whole_buckets_whatever_the_share() -> None:
    away = Away(gateways=4)
    one = demand(limit("tokens", 400), tokens=20)
    assert away.admits(one)
    away.grace.settle(one.request_id, Used(20))
    [debt] = away.grace.take_debts()
    assert (debt.per_minute, debt.burst, debt.amount) == (400, 400, 20)


def test_a_share_of_a_cap_counts_what_was_open_before() -> None:
    one = demand(limit("concurrency", 6))
    held = again(one)
    away = Away(gateways=3, held=(held,))
    assert away.admits(one)
    assert not away.admits(again(one))
    assert not away.grace.settle(held.request_id, Used(5))
    assert away.admits(again(one))


def test_a_cap_too_small_to_share_is_neither_a_refusal_nor_a_permission() -> None:
    away = Away(gateways=3)
    with pytest.raises(Unavailable):
        away.grace.admit(demand(limit("concurrency", 2)))
    assert away.admits(demand(limit("concurrency", 3)))


def test_a_shadow_bucket_is_not_charged_for_what_it_would_refuse() -> None:
    away = Away()
    one = demand(limit("tokens", 10, enforced=False), tokens=20)
    assert away.grace.admit(one).missed == ("tokens",)
    away.grace.settle(one.request_id, Used(20))
    assert away.owed() == {}


def test_a_key_under_a_budget_is_granted_nothing_once_budgets_are_no_longer_trusted() -> None:
    away, one = Away(), limit("tokens", 100)
    budget, of_one_model = limit("day_tokens", 1_000), limit("day_tokens", 1_000, model=MODEL)
    assert away.grace.may_grant((one, budget))
    away.now_us += 1
    assert not away.grace.may_grant((one, budget))
    assert away.grace.may_grant((one, of_one_model))  # other models may be served
    assert away.grace.may_grant((one, limit("day_tokens", 1_000, enforced=False)))
