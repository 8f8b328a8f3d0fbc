"""What requests and choices share through the prefix cache, and what they must not."""

import pytest

from tests.unit.engine.builders import (
    BLOCK_SIZE,
    AroundRunner,
    Transcript,
    assert_idle,
    drain,
    make_engine,
    make_load,
    make_request,
    run_alone,
)
from worker.engine.batch import Batch, Sampled
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest


class Watched(AroundRunner):
    """A runner that keeps the batches, and damages a row or fails when told to."""

    def __init__(self, blocks: int = 64) -> None:
        super().__init__(blocks=blocks)
        self.batches: list[Batch] = []
        self.fault: Exception | str | None = None

    def submit(self, batch: Batch) -> Sampled:
        self.batches.append(batch)
        sampled = super().submit(batch)
        if isinstance(self.fault, Exception):
            raise self.fault
        if self.fault is not None and sampled.ids:
            sampled.errors[0] = self.fault
        return sampled

    @property
    def tokens(self) -> list[int]:
        """Computed in each step."""
        return [len(batch.ids) for batch in self.batches]


@pytest.fixture
def runner() -> Watched:
    return Watched()


@pytest.fixture
def engine(runner) -> Engine:
    return make_engine(runner)


def run(engine: Engine, *requests: EngineRequest) -> Transcript:
    for request in requests:
        engine.add(request)
    return drain(engine)


def cached(said: Transcript, name: str) -> int:
    return said.done[name].totals.cached_tokens


@pytest.mark.parametrize(
    ("length", "found"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (15, 12), (16, 12), (17, 16)], ids=str
)
def test_a_repeated_prompt_computes_what_is_not_in_full_blocks_and_its_last_token_at_least(engine, length, found):
    cold = run(engine, make_request("a", length))
    warm = run(engine, make_request("b", length))
    assert (cached(cold, "a"), cached(warm, "b")) == (0, found)
    assert warm.steps[0].tokens == length - found
    alone = run_alone(make_request("b", length))
    assert (warm.ids, warm.text) == (alone.ids, alone.text)
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.prefix_hits_tokens_total) == (2 * length, found)


def test_an_answer_is_found_by_the_next_turn_of_its_conversation(engine):
    prompt = [5, 6, 7, 8, 9]
    said = run(engine, make_request("a", prompt, max_tokens=12))
    again = run(engine, make_request("b", [*prompt, *said.ids["a", 0], 11, 12]))
    assert cached(again, "b") == 16  # 5 + 12 tokens, of which the last was never computed


def test_one_salt_finds_nothing_of_another(engine):
    prompt = list(range(10, 30))
    run(engine, make_request("a", prompt, tenant="acme"))
    other = run(engine, make_request("b", prompt, tenant="globex"))
    assert cached(other, "b") == 0
    assert other.steps[0].tokens == 20
    assert cached(run(engine, make_request("c", prompt, tenant="acme")), "c") == 16


def test_requests_that_run_at_the_same_time_share_blocks(engine):
    prompt = list(range(10, 30))
    engine.add(make_request("a", prompt))
    engine.step()
    free = engine.stats().blocks_free
    engine.add(make_request("b", [*prompt, 40]))
    engine.step()
    assert free - engine.stats().blocks_free == 2  # the sixth block of each
    drain(engine)


def test_choices_compute_their_prompt_once_and_the_rest_of_its_last_block_each(runner, engine):
    said = run(engine, make_request("r", 14, n=4, max_tokens=3))
    # 14 tokens; then a token of choice 0 and 2 of each other choice, beyond the 12 in full blocks; then one each.
    assert runner.tokens == [14, 1 + 3 * 2, 4, 3]
    totals = said.done["r"].totals
    assert (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens) == (14, 0, 12)
    assert said.ids == run_alone(make_request("r", 14, n=4, max_tokens=3)).ids
    assert engine.stats().prefix_hits_tokens_total == 0  # sharing within a request is no hit


def test_choices_hold_the_blocks_of_their_prompt_together(engine):
    engine.add(make_request("r", 14, n=4))
    stats = engine.stats()
    assert (stats.waiting, stats.held) == (1, 3)
    assert stats.tiers == {0: make_load(waiting=1, held=3, held_blocks=3 * 1)}
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (1, 3)
    engine.step()
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (4, 0)
    assert stats.blocks_total - stats.blocks_free == 3 + 4 * 1


def test_choices_of_a_short_prompt_and_of_a_first_choice_that_ends_at_once(engine):
    said = run(engine, make_request("r", 2, n=3, max_tokens=1), make_request("s", 9, n=2, max_tokens=1))
    assert len(said.ids) == 5
    assert said.done["s"].totals.completion_tokens == 2


def test_abort_while_choices_wait_for_the_first(engine):
    engine.add(make_request("r", 60, n=4))
    engine.step()
    totals = engine.abort("r")
    assert totals is not None
    assert totals.prompt_tokens == 60
    assert_idle(engine)
    assert not engine.has_work


def test_two_prompts_of_one_request_share_blocks_that_do_not_count_as_cached(runner):
    engine = make_engine(runner, sequences_max=1)
    prompt = list(range(10, 23))
    run(engine, make_request("warm", prompt[:5], max_tokens=1))
    said = run(engine, make_request("r", prompts=(prompt, prompt), max_tokens=1))
    assert runner.tokens[1:] == [13 - 4, 13 - 12]
    assert said.done["r"].totals.cached_tokens == 4 + 4


def test_a_block_of_which_half_is_computed_is_not_found(runner):
    engine = make_engine(runner, tokens_per_step=6, sequences_max=6)
    prompt = list(range(10, 30))
    engine.add(make_request("a", prompt))
    engine.step()
    engine.abort("a")
    assert cached(run(engine, make_request("b", prompt)), "b") == 4


def test_evicted_blocks_are_computed_again():
    runner = Watched(blocks=8)
    engine = make_engine(runner)
    prompt = list(range(10, 26))
    run(engine, make_request("a", prompt, max_tokens=1))
    run(engine, make_request("big", list(range(40, 69)), max_tokens=1))  # takes all 8 blocks
    said = run(engine, make_request("b", prompt, max_tokens=1))
    assert cached(said, "b") == 0
    assert said.ids["b", 0] == run_alone(make_request("b", prompt, max_tokens=1)).ids["b", 0]


def test_nothing_of_a_failed_step_is_found(runner, engine):
    prompt = list(range(10, 30))
    runner.fault = RuntimeError("boom")
    assert run(engine, make_request("a", prompt)).done["a"].error == "engine_error"
    runner.fault = None
    assert cached(run(engine, make_request("b", prompt)), "b") == 0


def test_nothing_of_a_request_whose_row_failed_is_found_even_of_earlier_steps(runner):
    engine = make_engine(runner, tokens_per_step=8)
    prompt = list(range(10, 30))
    engine.add(make_request("a", prompt))
    engine.step()
    engine.step()  # 16 tokens are published, and may be the ones that made the logits NaN
    runner.fault = "NaN logits"
    assert engine.step().done[0].error == "engine_error"
    runner.fault = None
    assert_idle(engine)
    assert engine.stats().cached_blocks == 0
    assert cached(run(engine, make_request("b", prompt)), "b") == 0


def test_a_preempted_sequence_finds_its_own_blocks(runner):
    engine = make_engine(runner, sequences_max=1, tokens_per_step=64)
    engine.add(make_request("a", 30, tier=1, max_tokens=4))
    engine.step()
    engine.add(make_request("urgent", [9, 9], max_tokens=1))
    engine.step()
    said = drain(engine)
    assert runner.tokens == [30, 2, 31 - 28, 1, 1]
    totals = said.done["a"].totals
    assert (totals.preemptions, totals.cached_tokens, totals.prompt_tokens) == (1, 0, 30)


def test_caching_is_bounded_by_the_pool(engine):
    for number in range(40):
        run(engine, make_request(f"r{number}", [2 + number] * 30, max_tokens=6))
    stats = engine.stats()
    assert stats.blocks_free == stats.blocks_total
    assert stats.cached_blocks <= stats.blocks_total
    assert stats.cached_blocks > stats.blocks_total - BLOCK_SIZE
