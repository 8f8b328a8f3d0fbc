"""A runner one step ahead: the same tokens, texts, ends and bills as one that is in step."""

import pytest

from tests.unit.engine.ahead import Ahead
from tests.unit.engine.builders import (
    EOS,
    ScriptedRunner,
    assert_idle,
    drain,
    make_engine,
    make_request,
    make_runner,
    run_alone,
    token,
)
from worker.engine.batch import Batch, Sampled
from worker.engine.engine import Engine
from worker.engine.runner import Runner


def engine_ahead(inner: Runner | None = None, **config: float) -> Engine:
    return make_engine(Ahead(inner or make_runner()), **config)


def test_the_first_result_comes_with_the_second_step():
    engine = engine_ahead()
    engine.add(make_request(max_tokens=2))
    assert [len(engine.step().chunks) for _ in range(3)] == [0, 1, 1]
    assert_idle(engine)


def test_what_runs_in_a_small_pool_says_what_it_says_alone():
    requests = [
        make_request(f"r{number}", 3 + 5 * number, n=1 + number % 2, max_tokens=30, seed=number, **options)
        for number, options in enumerate([{}, {"stop": ("a",)}, {"repetition_penalty": 1.2}, {"min_tokens": 9}])
    ]
    engine = engine_ahead(make_runner(blocks=16), tokens_per_step=8, sequences_max=6)
    for request in requests:
        engine.add(request)
    said = drain(engine)
    assert engine.stats().preemptions_total
    for request in requests:
        alone = run_alone(request, context_length=engine.tokens_max)
        for choice in range(request.n):
            assert said.ids[request.id, choice] == alone.ids[request.id, choice]
            assert said.text[request.id, choice] == alone.text[request.id, choice]
        assert said.done[request.id].totals.completion_tokens == alone.done[request.id].totals.completion_tokens


def test_the_row_of_a_sequence_that_ended_in_the_step_before_is_ignored():
    inner = ScriptedRunner({0: [token("a"), EOS, token("b"), token("c")]}, prompt_len=5)
    engine = engine_ahead(inner)
    engine.add(make_request(max_tokens=9))
    said = drain(engine)
    assert len(inner.batches) == 3, "the third row is computed before the end is known"
    assert (said.ids["r", 0], said.finish["r", 0]) == ([token("a"), EOS], "stop")
    assert said.done["r"].totals.completion_tokens == 2


def test_no_row_is_computed_beyond_the_last_token_that_is_allowed():
    inner = ScriptedRunner({0: [token("a")] * 3}, prompt_len=5)
    engine = engine_ahead(inner)
    engine.add(make_request(max_tokens=3))
    drain(engine)
    assert len(inner.batches) == 3


def test_an_abort_with_a_step_in_flight_frees_the_blocks_at_once_and_bills_what_was_said():
    engine = engine_ahead()
    engine.add(make_request("gone", max_tokens=20))
    said = [len(engine.step().chunks) for _ in range(4)]
    totals = engine.abort("gone")
    assert totals is not None
    assert totals.completion_tokens == sum(said) == 3
    assert engine.stats().blocks_free == engine.stats().blocks_total
    engine.add(make_request("next", max_tokens=6))
    assert drain(engine).ids["next", 0] == run_alone(make_request("next", max_tokens=6)).ids["next", 0]


def test_a_step_that_fails_ends_its_own_requests_and_none_that_came_later():
    inner = make_runner()
    engine = engine_ahead(_Fails(inner, step=2))
    engine.add(make_request("bad", max_tokens=20))
    results = [engine.step(), engine.step()]
    engine.add(make_request("good"))
    results += [engine.step(), engine.step()]
    assert [str(result.failure) for result in results if result.failure] == ["boom"]
    said = drain(engine)
    assert "bad" not in said.done
    assert [done.error for result in results for done in result.done] == ["engine_error"]
    assert said.ids["good", 0] == run_alone(make_request("good")).ids["good", 0][-len(said.ids["good", 0]) :]


def test_a_step_that_is_not_taken_fails_in_its_turn():
    engine = make_engine(_Refuses(make_runner(), step=1))
    engine.add(make_request("r", max_tokens=20))
    results = [engine.step(), engine.step()]
    assert len(results[1].chunks) == 1, "the step before is not lost"
    assert [done.error for done in results[1].done] == ["engine_error"]
    assert results[1].done[0].totals.completion_tokens == 1
    assert_idle(engine)


@pytest.mark.parametrize("penalty", [1.0, 1.5])
def test_a_penalty_waits_for_the_token_that_it_counts(penalty):
    inner = _Counts(make_runner())
    engine = engine_ahead(inner)
    engine.add(make_request(max_tokens=6, repetition_penalty=penalty))
    drain(engine)
    assert inner.seen == ([] if penalty == 1.0 else [5, 6, 7, 8, 9, 10])


class _Inner:
    """Passes everything on."""

    def __init__(self, inner: Runner) -> None:
        self.inner = inner
        self.vocab_size = inner.vocab_size
        self.block_size = inner.block_size
        self.blocks_total = inner.blocks_total
        self.context_length = inner.context_length
        self.steps_ahead = 0

    def submit(self, batch: Batch) -> Sampled:
        return self.inner.submit(batch).result()

    def close(self) -> None:
        pass


class _Fails(_Inner):
    def __init__(self, inner: Runner, step: int) -> None:
        super().__init__(inner)
        self.left = step

    def submit(self, batch: Batch) -> Sampled:
        sampled = super().submit(batch)
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("boom")
        return sampled


class _Refuses(Ahead):
    def __init__(self, inner: Runner, step: int) -> None:
        super().__init__(inner)
        self.left = step

    def submit(self, batch: Batch):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("no")
        return super().submit(batch)


class _Counts(_Inner):
    def __init__(self, inner: Runner) -> None:
        super().__init__(inner)
        self.seen: list[int] = []

    def submit(self, batch: Batch) -> Sampled:
        self.seen += [params.seen.length for params in batch.samples if params.seen is not None]
        return super().submit(batch)
