import pytest

from worker.engine import service as service_module
from worker.engine.service import CREDIT_TOKENS_MAX, IDLE_TENANTS_MAX, OWED_TOKENS, SPREAD_TOKENS, Service


def serve(service: Service, tier: int, tenant: str, tokens: int) -> None:
    service.charge(tier, tenant, input_tokens=tokens)


def test_input_and_output_have_their_own_weights():
    service = Service(input_weight=1.0, output_weight=3.0)
    service.arrived(0, "a")
    service.charge(0, "a", input_tokens=10, output_tokens=4)
    assert service.level(0, "a") == 22.0


def test_a_tenant_that_arrives_starts_at_what_each_active_one_was_served_on_average():
    service = Service()
    for tenant in "ab":
        service.arrived(0, tenant)
    serve(service, 0, "a", 50)
    serve(service, 0, "b", 80)
    assert service.level(0, "new") == 65.0  # what it would be
    service.arrived(0, "new")
    assert service.level(0, "new") == 65.0


def test_a_tenant_that_arrives_starts_no_lower_than_the_least_of_those_who_are_active():
    service = Service()
    for tenant, tokens in (("a", 50), ("b", 80)):
        service.arrived(0, tenant)
        serve(service, 0, tenant, tokens)
    service.left(0, "a")
    assert service.level(0, "new") == service.level(0, "b")


def test_capacity_that_others_left_unused_is_no_claim_of_theirs_and_no_debt():
    service = Service()
    for tenant in ("busy", "modest"):
        service.arrived(0, tenant)
    serve(service, 0, "busy", int(10 * SPREAD_TOKENS))
    assert service.level(0, "new") == 9 * SPREAD_TOKENS
    assert service.level(0, "modest") == 8 * SPREAD_TOKENS
    serve(service, 0, "modest", 7)
    assert service.level(0, "modest") == 8 * SPREAD_TOKENS + 7


def test_idling_neither_earns_nor_forgives():
    service = Service()
    service.arrived(0, "heavy")
    service.arrived(0, "light")
    serve(service, 0, "heavy", 100)
    service.left(0, "heavy")
    service.arrived(0, "heavy")
    assert service.level(0, "heavy") == 100.0  # still ahead of the other
    service.left(0, "light")
    serve(service, 0, "heavy", 100)
    service.arrived(0, "light")
    assert service.level(0, "light") == 200.0


def test_arriving_twice_changes_nothing():
    service = Service()
    service.arrived(0, "a")
    service.arrived(0, "b")
    serve(service, 0, "b", 70)
    serve(service, 0, "a", 20)
    service.arrived(0, "a")
    service.arrived(0, "b")
    assert (service.level(0, "a"), service.level(0, "b")) == (20.0, 70.0)


def test_a_tier_that_was_empty_goes_on_where_it_ended():
    service = Service()
    service.arrived(0, "a")
    serve(service, 0, "a", 90)
    service.left(0, "a")
    service.arrived(0, "b")
    assert service.level(0, "b") == 90.0


def test_a_tenant_is_active_while_it_has_work_at_any_place():
    service = Service()
    service.arrived(0, "a", "queue")
    service.arrived(0, "a", "engine")
    service.arrived(0, "b")
    serve(service, 0, "b", 100)
    service.left(0, "a", "engine")
    service.arrived(0, "a", "engine")
    assert service.level(0, "a") == 0.0  # it waited in the queue all the time, and keeps its claim
    service.left(0, "a", "queue")
    service.left(0, "a", "engine")
    service.arrived(0, "a")
    assert service.level(0, "a") == 100.0


def test_leaving_unknown_or_twice_does_nothing():
    service = Service()
    service.left(3, "nobody")
    service.arrived(0, "a")
    service.left(0, "b")
    service.left(0, "a", "queue")
    serve(service, 0, "a", 5)
    assert service.level(0, "a") == 5.0


def test_serving_an_idle_tenant_is_a_bug():
    service = Service()
    service.arrived(0, "a")
    service.left(0, "a")
    with pytest.raises(AssertionError, match="idle"):
        serve(service, 0, "a", 1)


def test_tiers_have_counters_of_their_own():
    service = Service()
    service.arrived(0, "a")
    service.arrived(1, "a")
    serve(service, 0, "a", 10)
    assert (service.level(0, "a"), service.level(1, "a"), service.level(2, "a")) == (10.0, 0.0, 0.0)


def test_the_most_urgent_tier_goes_first_until_another_is_owed_its_share():
    service = Service(floor_share=0.1)
    for tier in (0, 1, 2):
        service.arrived(tier, "a")
    assert service.tiers([2, 0, 1]) == [0, 1, 2]
    serve(service, 0, "a", int(OWED_TOKENS * 10) - 10)
    assert service.tiers([2, 0, 1]) == [0, 1, 2]
    serve(service, 0, "a", 10)
    assert service.owed(1)
    assert service.owed(2)
    assert service.tiers([2, 0, 1]) == [1, 2, 0]
    serve(service, 1, "a", 100)
    assert service.tiers([2, 0, 1]) == [2, 0, 1]
    assert not service.owed(1)


def test_without_a_floor_share_nobody_is_owed_anything():
    service = Service(floor_share=0.0)
    service.arrived(0, "a")
    service.arrived(1, "b")
    serve(service, 0, "a", 10_000_000)
    assert service.tiers([0, 1]) == [0, 1]


def test_the_most_urgent_tier_that_has_work_is_owed_nothing_and_pays_nothing():
    service = Service(floor_share=0.5)
    service.arrived(1, "b")
    serve(service, 1, "b", 1_000_000)  # with nobody more urgent there is no competition
    service.arrived(0, "a")
    serve(service, 0, "a", int(2 * OWED_TOKENS))
    assert service.owed(1)
    service.left(0, "a")
    assert not service.owed(1)


def test_what_a_tier_is_owed_has_a_limit_and_ends_when_it_has_no_work():
    service = Service(floor_share=0.5)
    service.arrived(0, "a")
    service.arrived(1, "b")
    serve(service, 0, "a", 10_000_000)
    serve(service, 1, "b", int(2 * CREDIT_TOKENS_MAX))
    assert not service.owed(1)
    serve(service, 0, "a", 10_000_000)
    service.left(1, "b")
    serve(service, 0, "a", 10_000_000)  # what is served while nobody waits is owed to nobody
    service.arrived(1, "b")
    assert not service.owed(1)


def test_tenants_come_and_go_without_leaving_anything_behind():
    service = Service()
    service.arrived(0, "stays")
    for number in range(3 * IDLE_TENANTS_MAX):
        service.arrived(0, f"t{number}")
        serve(service, 0, f"t{number}", 1)
        service.left(0, f"t{number}")
    state = service._tiers[0]
    assert len(state.idle) == IDLE_TENANTS_MAX
    assert len(state.counters) == IDLE_TENANTS_MAX + 1
    assert len(state.bounds) <= IDLE_TENANTS_MAX + 4
    assert service.level(0, "t0") == service.level(0, "never seen")


@pytest.mark.parametrize("options", [{"input_weight": -1.0}, {"output_weight": -1.0}, {"floor_share": 1.0}])
def test_numbers_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="out of range"):
        Service(**options)


def test_the_threshold_is_below_what_a_tier_can_be_owed():
    assert service_module.OWED_TOKENS < service_module.CREDIT_TOKENS_MAX
