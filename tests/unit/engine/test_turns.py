"""What the engine tells the service, and what follows for tenants that compete."""

import pytest

from tests.unit.engine.builders import drain, make_engine, make_request, make_runner
from worker.engine.engine import Engine
from worker.engine.service import Service


@pytest.fixture
def service() -> Service:
    return Service(input_weight=1.0, output_weight=10.0)


def engine_of(service: Service, *, blocks: int = 64, **options: float) -> Engine:
    options = {"tokens_per_step": 32, "sequences_max": 8} | options
    return make_engine(make_runner(blocks=blocks), service=service, **options)


def test_input_is_charged_as_it_is_computed_and_output_as_it_is_accepted(service):
    engine = engine_of(service, tokens_per_step=8)
    engine.add(make_request("r", 19, max_tokens=3, tenant="acme"))
    levels = []
    while engine.has_work:
        engine.step()
        levels.append(service.level(0, "acme"))
    assert levels == [8, 16, 19 + 10, 19 + 20, 19 + 30]


def test_cached_tokens_choices_and_recomputation_are_not_charged(service):
    engine = engine_of(service, sequences_max=2)
    engine.add(make_request("r", 9, n=2, max_tokens=1))
    drain(engine)
    assert service.level(0, "acme") == 9 + 2 * 10
    engine.add(make_request("r", 9, max_tokens=1))
    drain(engine)
    assert service.level(0, "acme") == 9 + 2 * 10 + (9 - 8) + 10


def test_recomputation_is_not_charged(service):
    engine = engine_of(service, blocks=8, sequences_max=2, tokens_per_step=64)
    for tenant in "ab":
        service.arrived(0, tenant, "queue")  # active to the end, so that a level is what was charged
    engine.add(make_request("a", 10, max_tokens=16, tenant="a"))
    engine.add(make_request("b", [9] * 10, max_tokens=16, tenant="b"))
    drain(engine)
    assert engine.stats().preemptions_total > 0
    assert service.level(0, "a") == service.level(0, "b") == 10 + 160


def test_a_tenant_is_active_from_its_first_request_to_the_end_of_its_last(service):
    engine = engine_of(service)
    service.arrived(0, "other")
    engine.add(make_request("r", 5, max_tokens=1))
    engine.add(make_request("s", 5, max_tokens=9))
    engine.step()
    engine.step()
    service.charge(0, "acme")  # an idle tenant would be refused
    engine.abort("s")
    with pytest.raises(AssertionError, match="idle"):
        service.charge(0, "acme")


def test_a_failed_request_leaves_the_service(service):
    engine = engine_of(service)
    engine.add(make_request("r", 5, logit_bias=tuple((token, -100.0) for token in range(2, 97))))
    assert drain(engine).done["r"].error == "engine_error"
    with pytest.raises(AssertionError, match="idle"):
        service.charge(0, "acme")


def test_tenants_of_one_tier_get_equal_service_however_much_they_ask_for(service):
    engine = engine_of(service, sequences_max=4)
    tenants = [f"t{number}" for number in range(6)]
    for number, tenant in enumerate(tenants):
        for job in range(8 * (number + 1)):
            engine.add(make_request(f"{tenant}/{job}", [2 + number] * (3 + job % 5), max_tokens=5, tenant=tenant))
    generated = dict.fromkeys(tenants, 0)
    for _ in range(60):  # each of them has requests waiting all the time
        for chunk in engine.step().chunks:
            generated[chunk.request.partition("/")[0]] += len(chunk.ids)
    assert min(generated.values()) > 20
    jain = sum(generated.values()) ** 2 / (len(tenants) * sum(tokens**2 for tokens in generated.values()))
    assert jain >= 0.95


def test_a_less_urgent_tier_gets_its_floor_share_while_urgent_work_never_ends():
    engine = engine_of(Service(floor_share=0.1), sequences_max=2)
    for number in range(100):
        engine.add(make_request(f"less{number}", 8, max_tokens=4, tier=2, tenant="less"))
    generated = {0: 0, 2: 0}
    added = 0
    for _ in range(1_200):
        while engine.stats().waiting < 32 and added < 5_000:
            engine.add(make_request(f"u{added}", [5 + added % 80] * 8, max_tokens=4, tenant="urgent"))
            added += 1
        for chunk in engine.step().chunks:
            generated[2 if chunk.request.startswith("less") else 0] += len(chunk.ids)
    assert 0.07 < generated[2] / sum(generated.values()) < 0.13


def test_the_places_of_one_step_go_to_several_tenants(service):
    engine = engine_of(service, sequences_max=4)
    for tenant in "ab":
        for number in range(4):
            engine.add(make_request(f"{tenant}{number}", 4, tenant=tenant))
    assert {chunk.request for chunk in engine.step().chunks} == {"a0", "b0", "a1", "b1"}
