"""No starvation: whatever keeps arriving, and however small the pool, every request ends; tenants get equal service."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.engines import INPUT_WEIGHT, OUTPUT_WEIGHT, Inspected
from tests.unit.engine.builders import make_request

PROMPT_MAX, OUTPUT_MAX = 23, 12
STEPS_MAX = 1_500
engines = st.fixed_dictionaries(
    {
        "blocks": st.integers(10, 18),
        "tokens_per_step": st.integers(6, 24),
        "tokens_beside_decodes": st.integers(1, 24),
        "pace": st.sampled_from([None, 1.01, 2.5]),
        "sequences_max": st.integers(1, 6),
        "watermark": st.sampled_from([0.0, 0.05, 0.3]),
        "ahead": st.booleans(),
    }
)


class Flood:
    """Requests without end: three always wait, of any tenant but `late`."""

    def __init__(self, inspected: Inspected, seed: int, tiers: tuple[int, ...], output_max: int = OUTPUT_MAX) -> None:
        self._engine = inspected.engine
        self._chance = random.Random(seed)
        self._tiers = tiers
        self._output_max = output_max
        self._added = 0

    def go_on(self) -> None:
        while self._engine.stats().waiting < 3:
            chance = self._chance
            self._engine.add(
                make_request(
                    f"flood{self._added}",
                    [chance.randrange(2, 97) for _ in range(chance.randint(1, PROMPT_MAX))],
                    max_tokens=chance.randint(1, self._output_max),
                    tier=chance.choice(self._tiers),
                    tenant=chance.choice(["acme", "globex"]),
                )
            )
            self._added += 1


@given(config=engines, seed=st.integers(0, 999), tier=st.integers(0, 2), prompt=st.integers(1, PROMPT_MAX))
@settings(max_examples=50)
def test_a_request_ends_however_much_more_urgent_work_keeps_arriving(config, seed, tier, prompt):
    inspected = Inspected(**config)
    flood = Flood(inspected, seed, tiers=tuple(range(tier + 1)))
    flood.go_on()
    inspected.engine.add(make_request("late", prompt, max_tokens=OUTPUT_MAX, tier=tier, tenant="late"))
    for _ in range(STEPS_MAX):
        flood.go_on()
        if any(done.request == "late" for done in inspected.step().done):
            return
    raise AssertionError("the request starves")


@given(seed=st.integers(0, 999), tier=st.integers(1, 2), prompt=st.integers(10, 60), budget=st.integers(6, 24))
@settings(max_examples=20)
def test_a_prompt_that_was_begun_ends_however_many_more_urgent_ones_keep_arriving(seed, tier, prompt, budget):
    """There is room for all, and nobody gives way: the urgent prompts could take the budget of every step."""
    inspected = Inspected(blocks=60, tokens_per_step=budget, tokens_beside_decodes=budget, sequences_max=6)
    inspected.engine.add(make_request("late", prompt, max_tokens=OUTPUT_MAX, tier=tier, tenant="late"))
    inspected.step()
    flood = Flood(inspected, seed, tiers=(0,), output_max=1)
    for _ in range(STEPS_MAX):
        flood.go_on()
        if any(done.request == "late" for done in inspected.step().done):
            return
    raise AssertionError("the request starves")


@given(config=engines, prompts=st.lists(st.integers(1, PROMPT_MAX), min_size=3, max_size=3), n=st.integers(1, 2))
@settings(max_examples=15)
def test_tenants_that_always_wait_get_equal_service(config, prompts, n):
    inspected = Inspected(**config)
    tenants = {tenant: [number] * length for number, (tenant, length) in enumerate(zip("abc", prompts, strict=True), 2)}
    waiting = dict.fromkeys(tenants, 0)
    added = 0
    for _ in range(250):
        for tenant, prompt in tenants.items():
            while waiting[tenant] < config["sequences_max"] + 1:
                request = make_request(f"{tenant}{added}", prompt, n=n, max_tokens=OUTPUT_MAX, tenant=tenant)
                inspected.engine.add(request)
                waiting[tenant] += 1
                added += 1
        for done in inspected.step().done:
            waiting[done.request[0]] -= 1
    levels = [inspected.service.level(0, tenant) for tenant in tenants]
    # The most that one tenant can be ahead by: everything that runs at one time is its own.
    turn = PROMPT_MAX * INPUT_WEIGHT + n * OUTPUT_MAX * OUTPUT_WEIGHT
    assert max(levels) - min(levels) <= (config["sequences_max"] + 1) * turn
    assert min(levels) > 0
