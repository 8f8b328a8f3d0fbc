"""When a pool is left alone, and how it comes back. The times are handed in."""

from gateway.dispatch.breaker import (
    OPEN_S,
    OPEN_S_MAX,
    POOL_FAILURES_MIN,
    PROBE_S,
    PROBES,
    TENANT_FAILURES_MIN,
    Breakers,
    Circuit,
)

MANY = 100


def opened(now: float = 0.0) -> Circuit:
    circuit = Circuit(TENANT_FAILURES_MIN)
    for _ in range(int(TENANT_FAILURES_MIN)):
        circuit.failed(now)
    assert not circuit.closed
    return circuit


def test_a_few_failures_or_a_small_share_of_them_change_nothing() -> None:
    circuit = Circuit(TENANT_FAILURES_MIN)
    for _ in range(int(TENANT_FAILURES_MIN) - 1):
        circuit.failed(0.0)
    assert circuit.closed
    circuit = Circuit(TENANT_FAILURES_MIN)
    for _ in range(MANY):
        circuit.succeeded(0.0)
        circuit.succeeded(0.0)
        circuit.failed(0.0)
    assert circuit.closed
    circuit = Circuit(TENANT_FAILURES_MIN)
    for second in range(MANY):
        circuit.failed(100.0 * second)
    assert circuit.closed, "failures of long ago"


def test_it_refuses_until_its_time_is_over_and_says_how_long() -> None:
    circuit = opened()
    assert circuit.refused_s(0.25) == OPEN_S - 0.25
    assert circuit.refused_s(OPEN_S) == 0.0


def test_half_open_lets_probes_through_one_at_a_time() -> None:
    circuit = opened()
    passed = [step for step in range(100) if circuit.refused_s(OPEN_S + step / 100) == 0.0]
    assert passed == [0, int(PROBE_S * 100)]


def test_probes_that_succeed_close_it() -> None:
    circuit = opened()
    for _ in range(PROBES - 1):
        circuit.succeeded(OPEN_S + 1)
        assert not circuit.closed
    circuit.succeeded(OPEN_S + 1)
    assert circuit.closed
    circuit.failed(OPEN_S + 1)
    assert circuit.closed, "it remembered what it had forgiven"


def test_each_probe_that_fails_doubles_the_time_up_to_a_bound() -> None:
    circuit, now, waits = opened(), 0.0, list[float]()
    for _ in range(8):
        wait_s = circuit.refused_s(now)
        waits.append(wait_s)
        now += wait_s
        circuit.failed(now)
    assert waits[:4] == [OPEN_S, 2 * OPEN_S, 4 * OPEN_S, 8 * OPEN_S]
    assert max(waits) == waits[-1] == OPEN_S_MAX


def test_what_was_under_way_when_it_opened_does_not_open_it_for_longer() -> None:
    circuit = opened()
    for _ in range(MANY):
        circuit.failed(0.5)
    assert circuit.refused_s(0.5) == OPEN_S - 0.5
    circuit.succeeded(0.5)
    assert not circuit.closed


def test_no_tenant_alone_closes_a_pool_to_others() -> None:
    breakers = Breakers()
    now = 0.0
    for _ in range(2_000):
        if not breakers.refused_s("pool", "bad", now):
            breakers.failed("pool", "bad", now)
        assert breakers.refused_s("pool", "good", now) == 0.0
        now += 0.05
    assert breakers.refused_s("pool", "bad", now) > 0.0
    assert breakers.open_pools() == []


def test_what_a_tenant_had_under_way_counts_for_the_pool_only_until_its_own_circuit_opens() -> None:
    breakers = Breakers()
    for _ in range(MANY):
        breakers.failed("pool", "bad", 0.0)
    assert breakers.refused_s("pool", "bad", 0.0) > 0.0
    assert breakers.refused_s("pool", "good", 0.0) == 0.0


def test_failures_of_several_tenants_close_the_pool_and_no_other() -> None:
    breakers = Breakers()
    for tenant in range(int(POOL_FAILURES_MIN)):
        breakers.failed("pool", f"t{tenant}", 0.0)
    assert breakers.refused_s("pool", "new", 0.0) == OPEN_S
    assert breakers.refused_s("other", "new", 0.0) == 0.0


def test_a_lost_worker_counts_once_however_much_it_had() -> None:
    breakers = Breakers()
    for _ in range(50):
        breakers.succeeded("pool", "t", 0.0)
    breakers.lost("pool", 0.0)
    assert breakers.refused_s("pool", "t", 0.0) == 0.0
    breakers = Breakers()
    breakers.lost("pool", 0.0)
    assert breakers.refused_s("pool", "t", 0.0) == 0.0
    breakers.lost("pool", 1.0)
    breakers.lost("pool", 1.0)
    assert breakers.refused_s("pool", "t", 1.0) > 0.0
