"""A whole engine under random load: requests come, are aborted, fail, and run in pools and budgets far too small.

The fake model reads every context back through the block table, so a wrong slot, a block freed too early or a chunk
computed twice shows as a token that the same request would not get when alone.
"""

import dataclasses

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.property.engines import Inspected
from tests.unit.engine.builders import Transcript, assert_idle, drain, make_engine, make_request, make_runner, run_alone
from worker.engine.batch import Sampled
from worker.engine.request import EngineRequest

FAMILIES = [[2 + (step * index) % 90 for index in range(23)] for step in (3, 7)]
requests = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 30),
        "tier": st.integers(0, 2),
        "tenant": st.sampled_from(["acme", "globex", "initech"]),
        "seed": st.integers(0, 2**64 - 1),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.1]),
        "stop": st.sampled_from([(), ("a",), ("ab", "Q"), ("e",)]),
    }
)
# Prompts begin alike more often than not: they share blocks if their tenant is the same.
prompts = st.builds(
    lambda family, length, tail: family[:length] + tail,
    st.sampled_from(FAMILIES),
    st.integers(1, 23),
    st.lists(st.integers(2, 96), max_size=3),
).map(lambda prompt: prompt[:23])
engines = st.fixed_dictionaries(
    {
        "tokens_per_step": st.integers(6, 20),
        "tokens_beside_decodes": st.integers(1, 20),
        "pace": st.sampled_from([None, 1.01, 2.5]),
        "sequences_max": st.integers(1, 6),
        "watermark": st.sampled_from([0.0, 0.05, 0.3, 0.9]),
    }
)


def raise_in_step(_: Sampled) -> None:
    raise RuntimeError("boom")


def spoil_first_row(sampled: Sampled) -> None:
    if sampled.ids:
        sampled.errors[0] = "NaN logits"


class EngineMachine(RuleBasedStateMachine):
    ahead = False

    @initialize(blocks=st.integers(6, 16), config=engines)
    def create(self, blocks: int, config: dict[str, float]) -> None:
        self.config = config
        self.inspected = Inspected(blocks=blocks, ahead=self.ahead, **config)
        self.engine = self.inspected.engine
        self.said = Transcript()
        self.requests: dict[str, EngineRequest] = {}
        self.aborted: set[str] = set()

    @rule(prompt=prompts, options=requests)
    def add(self, prompt: list[int], options: dict) -> None:
        request = make_request(f"r{len(self.requests)}", prompt, **options)
        self.requests[request.id] = request
        self.engine.add(request)

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            had_work = self.engine.has_work
            result = self.inspected.step()
            self.said.take(result)
            assert bool(result.tokens) == had_work or (self.ahead and had_work)
            assert result.tokens <= self.config["tokens_per_step"]
            assert result.sequences <= self.config["sequences_max"]

    @rule(fault=st.sampled_from([raise_in_step, spoil_first_row]))
    def fail(self, fault) -> None:
        self.inspected.fails_next = fault
        self.said.take(self.inspected.step())
        self.inspected.fails_next = None

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))
        over = name in self.said.done or name in self.aborted
        totals = self.engine.abort(name)
        assert (totals is None) == over
        if totals is not None:
            said = sum(len(ids) for (request, _), ids in self.said.ids.items() if request == name)
            assert totals.completion_tokens == said
            self.aborted.add(name)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.engine.check_integrity()

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3_000):
            if not self.engine.has_work:
                break
            self.said.take(self.inspected.step())
        assert not self.engine.has_work, "a request never ends"
        assert_idle(self.engine)
        assert self.said.done.keys() | self.aborted == self.requests.keys()
        assert not self.said.done.keys() & self.aborted
        self.compare_with_runs_alone()

    def compare_with_runs_alone(self) -> None:
        # The pool's size ends a sequence, so the lone run gets the same limit as its context.
        limit = self.engine.tokens_max
        for name, request in self.requests.items():
            alone = run_alone(request, context_length=limit)
            cut_short = name in self.aborted or self.said.done[name].error is not None
            for choice in range(request.n):
                key = (name, choice)
                said, whole = self.said.ids.get(key, []), alone.ids[key]
                if cut_short:
                    assert said == whole[: len(said)]
                else:
                    assert said == whole
                    assert self.said.text[key] == alone.text[key]
                    assert self.said.finish[key] == alone.finish[key]
            if not cut_short:
                totals = self.said.done[name].totals
                assert totals.cached_tokens < totals.prompt_tokens
                assert totals.preemptions or not totals.recomputed_tokens
                same = dataclasses.replace(totals, cached_tokens=0, preemptions=0, recomputed_tokens=0)
                assert same == alone.done[name].totals


class AheadMachine(EngineMachine):
    ahead = True


@pytest.mark.parametrize("machine", [EngineMachine, AheadMachine], ids=["in step", "ahead"])
def test_an_engine_under_random_load(machine):
    run_state_machine_as_test(machine, settings=settings(max_examples=40, stateful_step_count=25))


@given(
    lengths=st.lists(st.integers(1, 20), min_size=2, max_size=6),
    tiers=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    config=engines,
)
@settings(max_examples=60)
def test_first_tokens_come_in_order_of_tier_and_arrival(lengths, tiers, config):
    """With room for all, nobody is overtaken by one that is less urgent or came later."""
    engine = make_engine(make_runner(blocks=200), **config)
    for index, length in enumerate(lengths):
        engine.add(make_request(f"r{index}", length, tier=tiers[index], max_tokens=3))
    first_seen: list[int] = []
    while engine.has_work:
        result = engine.step()
        fresh = {int(chunk.request[1:]) for chunk in result.chunks} - set(first_seen)
        first_seen += sorted(fresh, key=lambda index: (tiers[index], index))
    note(f"first tokens: {first_seen}")
    assert first_seen == sorted(first_seen, key=lambda index: (tiers[index], index))


@given(prompt=st.integers(1, 31), max_tokens=st.integers(1, 60), blocks=st.integers(8, 12), others=st.integers(0, 3))
@settings(max_examples=60)
def test_where_a_sequence_ends_does_not_depend_on_who_else_runs(prompt, max_tokens, blocks, others):
    engine = make_engine(make_runner(blocks=blocks))
    for name in ("r", *(f"other{index}" for index in range(others))):
        engine.add(make_request(name, prompt, max_tokens=max_tokens))
    said = drain(engine)
    assert len(said.ids["r", 0]) == min(max_tokens, engine.tokens_max - prompt)
