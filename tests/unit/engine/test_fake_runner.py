import pytest

from tests.unit.engine.builders import ORDINARY, VOCABULARY, make_runner
from tests.unit.engine.runner_conformance import RunnerConformance, batch_of, greedy
from worker.engine.batch import LogitBias
from worker.engine.fake_runner import FakeRunner


class TestFakeRunner(RunnerConformance):
    @pytest.fixture(params=[True, False], ids=["oracle", "plain"])
    def runner(self, request) -> FakeRunner:
        return FakeRunner(
            vocab_size=64, blocks_total=17, block_size=4, context_length=64, ids=range(2, 42), oracle=request.param
        )


def test_tokens_depend_on_seed_choice_and_position_and_are_ordinary():
    runner = FakeRunner(vocab_size=200, blocks_total=9, block_size=4, context_length=64, ids=range(100, 200))
    variants = [greedy(5), greedy(6), greedy(5, choice=1), greedy(5, seed=8), greedy(5)]
    said = [runner.submit(batch_of(runner, [([2], 0, [1], params)])).ids[0] for params in variants]
    assert said[0] == said[-1]
    assert len(set(said[:-1])) > 1
    assert all(100 <= token < 200 for token in said)


def test_the_price_of_a_step_is_paid_in_one_sleep():
    slept: list[float] = []
    runner = FakeRunner(
        vocab_size=64,
        blocks_total=9,
        block_size=4,
        context_length=64,
        ids=range(2, 42),
        step_us=2_000,
        token_us=100,
        sleep=slept.append,
    )
    runner.submit(batch_of(runner, [([2, 3, 4], 0, [1], greedy(3)), ([2], 0, [2], greedy(1))]))
    assert slept == [pytest.approx(0.0024)]


def test_a_row_with_every_token_banned_is_an_error_of_that_row():
    runner = make_runner()
    bans = LogitBias.of((token, -100.0) for token in ORDINARY)
    sampled = runner.submit(batch_of(runner, [([2], 0, [1], greedy(1, bias=bans)), ([2], 0, [2], greedy(1))]))
    assert list(sampled.errors) == [0]
    assert sampled.ids[1] in ORDINARY


def test_the_oracle_notices_a_block_table_that_leads_astray():
    runner = make_runner()
    ids = [2, 3, 4, 5, 6]
    runner.submit(batch_of(runner, [(ids, 0, [1, 2], None), (ids[::-1], 0, [3, 4], None)]))
    right = runner.submit(batch_of(runner, [([*ids, 7], 5, [1, 2], greedy(6))])).ids
    wrong = runner.submit(batch_of(runner, [([*ids, 7], 5, [3, 2], greedy(6))])).ids
    assert right != wrong
    with pytest.raises(AssertionError, match="another sequence"):
        runner.submit(batch_of(runner, [([*ids, 7], 5, [9, 2], greedy(6))]))


@pytest.mark.parametrize("ids", [(), (-1,), (VOCABULARY.vocab_size,)])
def test_ids_outside_the_vocabulary_are_refused(ids):
    with pytest.raises(ValueError, match="vocabulary"):
        FakeRunner(vocab_size=VOCABULARY.vocab_size, blocks_total=2, block_size=4, context_length=8, ids=ids)
