"""What sending again what failed may add."""

import pytest

from gateway.dispatch.retries import CREDIT_MAX, RESERVE, SHARE, SPELL_S, RetryBudget


def test_without_failures_every_retry_passes_and_none_is_counted() -> None:
    budget = RetryBudget()
    assert all(budget.passes("t", 0.0, retry=True) for _ in range(1_000))
    budget.failed("t", 0.0)
    assert [budget.passes("t", 0.0, retry=True) for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize("each", [2, 10])
def test_while_everything_fails_retries_add_a_tenth_and_a_few(each: int) -> None:
    """Clients that try each request `each` times more, whatever they are told."""
    budget, now, attempts = RetryBudget(), 0.0, 0
    for _ in range(1_000):
        for retry in [False] + [True] * each:
            if budget.passes("t", now, retry=retry):
                attempts += 1
                budget.failed("t", now)
            now += 0.01
    assert 1_000 < attempts <= 1_000 * (1 + SHARE) + RESERVE


def test_a_client_is_told_what_will_be_done() -> None:
    budget = RetryBudget()
    budget.failed("t", 0.0)
    while budget.allows("t", 0.0):
        assert budget.passes("t", 0.0, retry=True)
    assert not budget.passes("t", 0.0, retry=True)
    assert budget.allows("other", 0.0)


def test_credit_does_not_grow_without_end_and_a_spell_ends() -> None:
    budget = RetryBudget()
    budget.failed("t", 0.0)
    for _ in range(1_000):
        budget.passes("t", 0.0, retry=False)
    assert sum(budget.passes("t", 0.0, retry=True) for _ in range(100)) == CREDIT_MAX
    assert not budget.passes("t", SPELL_S, retry=True)
    assert budget.passes("t", SPELL_S + 0.1, retry=True)
