"""Fairness over any traffic: whoever asks `Service` for each turn serves everybody as it promises."""

from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.service import CREDIT_TOKENS_MAX, DEBT_TOKENS_MAX, Service

TENANTS = "abcdef"
COST_MAX = 300
costs = st.integers(1, COST_MAX)
turns = st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from(["arrive", "leave", "serve"]), costs), max_size=80)


@given(st.lists(costs, min_size=1, max_size=200))
@settings(max_examples=60)
def test_tenants_that_always_have_work_are_never_further_apart_than_one_turn(prices):
    service = Service(input_weight=1.0)
    for tenant in TENANTS:
        service.arrived(0, tenant)
    for cost in prices:
        tenant = min(TENANTS, key=lambda name: service.level(0, name))
        service.charge(0, tenant, input_tokens=cost)
        levels = [service.level(0, name) for name in TENANTS]
        assert max(levels) - min(levels) <= COST_MAX


@given(
    prices=st.lists(costs, min_size=1, max_size=10),
    waiting=st.integers(1, 8),
    tenants=st.integers(1, 1_000),
)
@settings(max_examples=40)
def test_a_tenant_that_stays_gets_its_share_beside_those_who_come_and_go(prices, waiting, tenants):
    service = Service(input_weight=1.0)
    comers = (f"t{number % (tenants + waiting)}" for number in count())
    present = ["steady", *(next(comers) for _ in range(waiting))]
    for tenant in present:
        service.arrived(0, tenant)
    served = total = 0
    for turn in range(2_000):
        tenant = min(reversed(present), key=lambda name: service.level(0, name))  # the one that stays loses every tie
        cost = prices[turn % len(prices)]
        service.charge(0, tenant, input_tokens=cost)
        total += cost
        if tenant == "steady":
            served += cost
        else:
            present.remove(tenant)
            service.left(0, tenant)
            present.append(next(name for name in comers if name not in present))
            service.arrived(0, present[-1])
        assert served >= total / len(present) - 3 * COST_MAX


@given(turns)
@settings(max_examples=100)
def test_nobody_comes_back_below_those_who_are_active_or_below_itself(script):
    service = Service(input_weight=1.0)
    levels: dict[str, float] = {}  # of active tenants
    last: dict[str, float] = {}
    for tenant, what, cost in script:
        if what == "arrive":
            service.arrived(0, tenant)
            level = service.level(0, tenant)
            if tenant not in levels:
                assert level >= last.get(tenant, 0.0)
                assert level >= min(levels.values(), default=0.0)
            levels[tenant] = level
        elif what == "leave":
            service.left(0, tenant)
            last[tenant] = levels.pop(tenant, last.get(tenant, 0.0))
        elif tenant in levels:
            service.charge(0, tenant, input_tokens=cost)
            levels[tenant] += cost
        assert all(service.level(0, name) == level for name, level in levels.items())


@given(
    tiers=st.lists(st.integers(0, 4), min_size=2, max_size=4, unique=True),
    share=st.sampled_from([0.02, 0.1, 0.25]),
    prices=st.lists(costs, min_size=1, max_size=10),
)
@settings(max_examples=40)
def test_each_tier_that_waits_gets_its_floor_share_and_the_most_urgent_the_rest(tiers, share, prices):
    service = Service(input_weight=1.0, floor_share=share)
    served = dict.fromkeys(sorted(tiers), 0)
    for tier in served:
        service.arrived(tier, "t")
    for turn in range(4_000):
        tier = service.tiers(served)[0]
        cost = prices[turn % len(prices)]
        served[tier] += cost
        service.charge(tier, "t", input_tokens=cost)
    total = sum(served.values())
    for tier in list(served)[1:]:
        assert served[tier] >= share * total - CREDIT_TOKENS_MAX
        assert served[tier] <= share * total + DEBT_TOKENS_MAX
