"""In which order waiting jobs are claimed, and what the counters are told of who waits."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.service import Service
from worker.link.claim_order import ClaimOrder, TierOrder


def claim(order: ClaimOrder, tier: TierOrder, count: int, *, tokens: int = 0) -> str:
    """The tenants of the next `count` claims."""
    claimed = ""
    for _ in range(count):
        tenant = tier.first()
        if tenant is None:
            break
        claimed += tenant
        order.took(tier, tenant, tokens)
    return claimed


def test_equals_take_turns_over_looks() -> None:
    order = ClaimOrder(Service())
    assert claim(order, order.of(0, {"a": 5, "b": 5, "c": 1}), 4) == "abca"
    assert claim(order, order.of(0, {"a": 4, "b": 4}), 3) == "bab"


def test_who_was_served_less_comes_first_until_it_has_had_as_much() -> None:
    service = Service(input_weight=1.0, output_weight=1.0)
    order = ClaimOrder(service)
    order.waiting(0, {"a", "b"})
    service.charge(0, "a", input_tokens=25)
    assert claim(order, order.of(0, {"a": 9, "b": 9}), 5, tokens=10) == "bbbab"


def test_what_is_charged_during_a_look_counts() -> None:
    service = Service(input_weight=1.0, output_weight=1.0)
    order = ClaimOrder(service)
    order.waiting(0, {"a", "b"})
    look = order.of(0, {"a": 9, "b": 9})
    assert claim(order, look, 1) == "a"
    service.charge(0, "b", output_tokens=1)
    assert claim(order, look, 3) == "aaa"


def test_a_claim_weighs_what_it_will_be_charged() -> None:
    service = Service(input_weight=0.5, output_weight=1.0)
    order = ClaimOrder(service)
    order.waiting(0, {"a", "b"})
    service.charge(0, "b", output_tokens=12)
    assert claim(order, order.of(0, {"a": 9, "b": 9}), 5, tokens=10) == "aaaba"


def test_a_claim_that_was_charged_during_the_look_counts_once() -> None:
    service = Service(input_weight=1.0, output_weight=1.0)
    order = ClaimOrder(service)
    order.waiting(0, {"a", "b"})
    service.charge(0, "b", input_tokens=15)
    look = order.of(0, {"a": 9, "b": 9})
    assert claim(order, look, 1, tokens=10) == "a"
    service.charge(0, "a", input_tokens=10)
    assert claim(order, look, 2, tokens=10) == "ab"


def test_a_tenant_without_jobs_for_us_is_passed_over() -> None:
    order = ClaimOrder(Service())
    look = order.of(0, {"a": 1, "b": 1})
    assert look.first() == "a"
    look.exhausted()
    assert claim(order, look, 5) == "b"
    assert look.first() is None


def test_the_counters_know_who_waits_outside() -> None:
    """A tenant's counter is raised when it comes back from idling, and not while its jobs only wait."""
    service = Service(input_weight=1.0, output_weight=1.0)
    order = ClaimOrder(service)
    order.waiting(0, {"patient", "busy"})
    service.charge(0, "busy", input_tokens=100)
    order.only(0, {"patient", "busy"})
    assert service.level(0, "patient") == 0
    order.only(0, {"busy"})
    assert service.level(0, "patient") == 100
    order.only(0, set())
    order.waiting(0, {"patient"})
    assert service.level(0, "patient") == 100


def test_who_waits_outside_is_owed_a_share() -> None:
    service = Service(floor_share=0.5)
    order = ClaimOrder(service)
    for tier in (0, 2):
        order.waiting(tier, {"a"})
    assert not order.owed(2)
    service.charge(0, "a", input_tokens=10_000)
    assert order.owed(2)
    assert not order.owed(0)


@given(
    waiting=st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 30), min_size=2),
    served=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 50)), max_size=10),
    tokens=st.integers(1, 20),
)
@settings(max_examples=100)
def test_claims_differ_by_one_job_at_most_between_tenants_that_go_on_waiting(waiting, served, tokens) -> None:
    service = Service(input_weight=1.0, output_weight=1.0)
    order = ClaimOrder(service)
    order.waiting(0, waiting.keys())
    look = order.of(0, waiting)
    for tenant, had in served:
        if tenant in waiting:
            service.charge(0, tenant, input_tokens=had)
    had = {tenant: service.level(0, tenant) for tenant in waiting}
    left = dict(waiting)
    for tenant in claim(order, look, 100, tokens=tokens):
        assert had[tenant] == min(had[other] for other in left if left[other])
        had[tenant] += tokens
        left[tenant] -= 1
    assert sum(waiting.values()) > 100 or not any(left.values())
