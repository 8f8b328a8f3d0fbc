import dataclasses

import pytest

from tests.unit.engine.builders import (
    BLOCK_SIZE,
    EOS,
    EOT,
    VOCABULARY,
    AroundRunner,
    ScriptedRunner,
    Transcript,
    assert_idle,
    drain,
    make_engine,
    make_load,
    make_request,
    make_runner,
    run_alone,
    token,
)
from worker.engine.batch import Batch, Sampled
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.errors import DoesNotFit, InvalidRequest
from worker.engine.results import RequestTotals
from worker.engine.service import Service
from worker.models.token_table import TokenTable

HI = [token("h"), token("i")]


def scripted(script: dict[int, list[int]], request=None, **options) -> tuple[Transcript, ScriptedRunner]:
    runner = ScriptedRunner(script, prompt_len=5, **options)
    engine = make_engine(runner)
    engine.add(request or make_request())
    return drain(engine), runner


@pytest.mark.parametrize("eos", [EOS, EOT])
def test_each_end_of_sequence_id_ends_the_text_without_showing(eos):
    said, _ = scripted({0: [*HI, eos]})
    assert said.text["r", 0] == "hi"
    assert said.ids["r", 0] == [*HI, eos]
    assert said.finish["r", 0] == "stop"
    assert said.done["r"].totals == RequestTotals(prompt_tokens=5, cached_tokens=0, completion_tokens=3)


def test_ignore_eos_goes_on_to_the_length():
    said, _ = scripted({0: [*HI, EOS, *HI, *HI, *HI]}, make_request(ignore_eos=True))
    assert said.text["r", 0] == "hihihih"
    assert said.finish["r", 0] == "length"
    assert said.done["r"].totals.completion_tokens == 8


def test_a_stop_string_cuts_the_text_and_counts_its_tokens():
    said, _ = scripted({0: [token(c) for c in "say end"]}, make_request(stop=("end",)))
    assert said.text["r", 0] == "say "
    assert said.finish["r", 0] == "stop"
    assert said.done["r"].totals.completion_tokens == 7


def test_a_held_back_stop_prefix_comes_out_at_the_end():
    said, _ = scripted({0: [token(c) for c in "aaaaaaen"]}, make_request(stop=("end",)))
    assert said.text["r", 0] == "aaaaaaen"
    assert said.finish["r", 0] == "length"


def test_a_character_in_halves_and_half_a_character_at_the_end():
    halves = [token(b"\xc3"), token(b"\xa9"), token(b"\xf0\x9f"), EOS]
    said, _ = scripted({0: halves})
    assert [chunk.text for step in said.steps for chunk in step.chunks] == ["", "\u00e9", "", "\ufffd"]


def test_choices_of_one_request_run_together_and_end_apart():
    request = make_request(prompts=([2] * 5, [3] * 5), n=2, max_tokens=4)
    script = {0: [EOS], 1: [*HI, EOS], 2: [*HI, *HI], 3: [EOT]}
    said, runner = scripted(script, request)
    assert said.finish == {("r", 0): "stop", ("r", 1): "stop", ("r", 2): "length", ("r", 3): "stop"}
    # Each prompt counts once, whatever n is.
    assert said.done["r"].totals == RequestTotals(prompt_tokens=10, cached_tokens=0, completion_tokens=9)
    # The first choice of each computes it; the second finds its full block and computes what is left.
    assert runner.batches[0].ids.tolist() == [2] * 5 + [3] * 5
    assert runner.batches[1].ids.tolist() == [HI[0], 2, 3]


def test_logprobs_carry_the_bytes_of_their_tokens():
    engine = make_engine()
    engine.add(make_request(logprobs=2, max_tokens=2))
    chunk = engine.step().chunks[0]
    assert chunk.logprobs is not None
    (told,) = chunk.logprobs
    assert told.id == chunk.ids[0]
    assert told.text == VOCABULARY.token_bytes(told.id)
    assert [text for _, _, text in told.top] == [VOCABULARY.token_bytes(other) for other, _, _ in told.top]
    assert len(told.top) == 2


def test_logprobs_are_absent_unless_asked_for():
    engine = make_engine()
    engine.add(make_request())
    assert engine.step().chunks[0].logprobs is None


def test_the_context_ends_a_sequence_with_length():
    engine = make_engine(make_runner(context=16))
    engine.add(make_request("a", 15, max_tokens=5))
    engine.add(make_request("b", 10, max_tokens=100))
    said = drain(engine)
    assert said.finish == {("a", 0): "length", ("b", 0): "length"}
    assert (len(said.ids["a", 0]), len(said.ids["b", 0])) == (1, 6)


@pytest.mark.parametrize("length", [BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 2 * BLOCK_SIZE, 4 * BLOCK_SIZE, 15])
def test_prompts_at_block_boundaries(length):
    engine = make_engine()
    for name in "abc":
        engine.add(make_request(name, length))
    said = drain(engine)
    assert said.ids["b", 0] == run_alone(make_request("b", length)).ids["b", 0]


def test_a_prompt_that_can_never_fit_is_refused_at_once():
    engine = make_engine(make_runner(blocks=8))
    with pytest.raises(DoesNotFit, match=r"48 tokens.* 32"):
        engine.add(make_request(prompt=12 * BLOCK_SIZE, max_tokens=4))
    with pytest.raises(DoesNotFit):
        engine.add(make_request(prompt=8 * BLOCK_SIZE, max_tokens=1))
    assert not engine.has_work


def test_two_sequences_that_outgrow_the_pool_both_end_and_others_get_through():
    # H-F02: 3 blocks of prompt, 10 more wanted, 8 in all; then ten small ones.
    engine = make_engine(make_runner(blocks=8))
    for name in ("a", "b"):
        engine.add(make_request(name, 3 * BLOCK_SIZE, max_tokens=10 * BLOCK_SIZE, tier=1))
    said = Transcript()
    for _ in range(5):
        said.take(engine.step())
    for index in range(10):
        engine.add(make_request(f"probe{index}", 3, max_tokens=4))
    said.steps += (rest := drain(engine)).steps
    assert rest.finish["a", 0] == rest.finish["b", 0] == "length"
    assert said.finish | rest.finish == dict.fromkeys(said.finish | rest.finish, "length")
    assert sum(step.preemptions for step in said.steps) > 0
    assert rest.done["a"].totals.completion_tokens == 5 * BLOCK_SIZE
    assert len(rest.done) + len(said.done) == 12


def test_preemption_and_chunks_do_not_change_what_is_said():
    requests = [make_request(f"r{i}" * (i + 1), 3 + 5 * i, max_tokens=20, seed=i, tier=i % 2) for i in range(5)]
    engine = make_engine(make_runner(blocks=14), tokens_per_step=8)
    for request in requests:
        engine.add(request)
    said = drain(engine)
    assert sum(step.preemptions for step in said.steps) > 0
    for request in requests:
        alone = run_alone(request)
        assert said.ids[request.id, 0] == alone.ids[request.id, 0]
        assert said.text[request.id, 0] == alone.text[request.id, 0]


@pytest.mark.parametrize("blocks", [16, 20, 64])
def test_what_is_computed_again_is_counted_and_nothing_else(blocks):
    requests = [make_request(str(i), 9 + i, max_tokens=30, tenant=str(i), ignore_eos=True) for i in range(4)]
    engine = make_engine(make_runner(blocks=blocks), tokens_per_step=8)
    for request in requests:
        engine.add(request)
    said = drain(engine)
    once = sum(len(request.prompts[0]) + len(said.ids[request.id, 0]) - 1 for request in requests)
    again = sum(done.totals.recomputed_tokens for done in said.done.values())
    assert sum(step.tokens for step in said.steps) == once + again
    assert (again > 0) == any(done.totals.preemptions for done in said.done.values()) == (blocks < 64)


def test_abort_at_every_step_frees_everything_and_bills_what_was_said():
    for steps in range(14):
        engine = make_engine(make_runner(blocks=20), tokens_per_step=8)
        engine.add(make_request("gone", 20, n=2, max_tokens=6))
        engine.add(make_request("stays", 9))
        said = Transcript()
        for _ in range(steps):
            said.take(engine.step())
        totals = engine.abort("gone")
        engine.check_integrity()
        if "gone" in said.done:
            assert totals is None
        else:
            assert totals is not None
            assert totals.completion_tokens == sum(len(ids) for (name, _), ids in said.ids.items() if name == "gone")
            assert totals.prompt_tokens == (20 if steps else 0)
        assert engine.abort("gone") is None
        rest = drain(engine)
        assert "gone" not in rest.done
        assert ("gone", 0) not in rest.ids
        whole = said.ids.get(("stays", 0), []) + rest.ids.get(("stays", 0), [])
        assert whole == run_alone(make_request("stays", 9)).ids["stays", 0]


def test_an_unknown_abort_does_nothing():
    engine = make_engine()
    assert engine.abort("nobody") is None


def test_a_prompt_that_never_started_is_not_billed():
    engine = make_engine(sequences_max=1)
    engine.add(make_request(prompts=([2] * 5, [3] * 7)))
    engine.step()
    totals = engine.abort("r")
    assert totals == RequestTotals(prompt_tokens=5, cached_tokens=0, completion_tokens=1)


def test_a_step_that_raises_ends_its_requests_and_no_others():
    runner = ScriptedRunner({0: [*HI] * 10}, prompt_len=5, faults={2: ZeroDivisionError("boom")})
    engine = make_engine(runner, sequences_max=1)
    engine.add(make_request("first"))
    engine.add(make_request("second"))
    said = drain(engine)
    assert said.done["first"].error == "engine_error"
    assert said.done["first"].totals == RequestTotals(prompt_tokens=5, cached_tokens=0, completion_tokens=2)
    assert ("first", 0) not in said.finish
    assert said.done["second"].error is None
    assert said.finish["second", 0] == "length"
    failures = [step.failure for step in said.steps if step.failure]
    assert [type(failure) for failure in failures] == [ZeroDivisionError]
    assert "boom" not in (said.done["first"].message or "")
    assert failures[0].__notes__ == ["in a step of 1 sequences and 1 tokens"]


class _BadRows(AroundRunner):
    """Damages the rows of one choice, in one step, of what a runner says."""

    def __init__(self, *, choice: int, row_error: str | None) -> None:
        super().__init__()
        self._choice = choice
        self._row_error = row_error
        self._steps = 0

    def submit(self, batch: Batch) -> Sampled:
        sampled = super().submit(batch)
        self._steps += 1
        for row, params in enumerate(batch.samples):
            if params.choice == self._choice and self._steps == 3:
                if self._row_error is None:
                    sampled.ids[row] = self.vocab_size
                else:
                    sampled.errors[row] = self._row_error
        return sampled


@pytest.mark.parametrize("row_error", ["NaN logits", None], ids=["reported", "outside the vocabulary"])
def test_a_bad_row_ends_its_request_alone(row_error):
    engine = make_engine(_BadRows(choice=1, row_error=row_error))
    engine.add(make_request("bad", n=3))
    engine.add(make_request("good", 9))
    said = drain(engine)
    assert said.done["bad"].error == "engine_error"
    assert (row_error or "outside the vocabulary") in (said.done["bad"].message or "")
    # Nothing of the third step is said; choices 1 and 2 began in the second.
    assert [len(said.ids["bad", choice]) for choice in range(3)] == [2, 1, 1]
    assert said.done["bad"].totals.completion_tokens == 4
    assert said.ids["good", 0] == run_alone(make_request("good", 9)).ids["good", 0]


def test_a_runner_that_answers_too_little_fails_the_step():
    class Mute(ScriptedRunner):
        def submit(self, batch: Batch) -> Sampled:
            return Sampled([], [])

    engine = make_engine(Mute({}, 5))
    engine.add(make_request())
    result = engine.step()
    assert isinstance(result.failure, RuntimeError)
    assert [done.error for done in result.done] == ["engine_error"]
    assert_idle(engine)


@pytest.mark.parametrize(
    "request_",
    [
        make_request(prompt=[]),
        make_request(prompts=([2], [])),
        make_request(prompt=[-1]),
        make_request(prompt=[2, VOCABULARY.vocab_size]),
        make_request(n=0),
        make_request(max_tokens=0),
        make_request(stop=("a", "")),
        make_request(logit_bias=((VOCABULARY.vocab_size, 5.0),)),
        make_request(logit_bias=((-1, 5.0),)),
        dataclasses.replace(make_request(), prompts=()),
    ],
)
def test_a_malformed_request_is_refused_and_leaves_no_trace(request_):
    engine = make_engine()
    with pytest.raises(InvalidRequest):
        engine.add(request_)
    assert not engine.has_work
    assert_idle(engine)


def test_a_request_that_cannot_be_prepared_leaves_no_trace():
    service = Service()
    short = TokenTable(VOCABULARY.tokens[:9], eos_ids=VOCABULARY.eos_ids, skips_first_space=True)
    engine = Engine(make_runner(), short, EngineConfig(block_size=BLOCK_SIZE, context_length=512), service)
    with pytest.raises(IndexError):
        engine.add(make_request(prompt=[50]))
    assert_idle(engine)
    with pytest.raises(KeyError):
        service.charge(0, "acme")  # nobody has ever arrived


def test_the_last_id_of_the_vocabulary_is_a_prompt():
    engine = make_engine()
    engine.add(make_request(prompt=[VOCABULARY.vocab_size - 1]))
    assert drain(engine).finish["r", 0] == "length"


def test_an_id_is_taken_while_it_runs_and_free_afterwards():
    engine = make_engine()
    engine.add(make_request())
    with pytest.raises(InvalidRequest):
        engine.add(make_request())
    drain(engine)
    engine.add(make_request())
    assert drain(engine).finish["r", 0] == "length"


def test_a_step_without_work_does_nothing():
    result = make_engine().step()
    assert (result.chunks, result.done, result.tokens) == ([], [], 0)


def test_stats_count_blocks_sequences_and_tokens():
    engine = make_engine(make_runner(blocks=32), sequences_max=2)
    engine.add(make_request("a", 5, n=2, max_tokens=3))
    engine.add(make_request("b", [9] * 6, max_tokens=3))
    engine.add(make_request("c", 6, max_tokens=3, tier=2))
    engine.step()
    stats = engine.stats()
    assert (stats.blocks_total, stats.blocks_free) == (32, 28)
    assert (stats.running, stats.waiting, stats.held) == (2, 2, 0)
    assert stats.tiers == {0: make_load(running=2, waiting=1, blocks=4), 2: make_load(waiting=1)}
    assert (stats.prompt_tokens_total, stats.generated_tokens_total) == (11, 2)
    drain(engine)
    stats = engine.stats()
    assert (stats.prompt_tokens_total, stats.generated_tokens_total) == (17, 12)
    assert (stats.tiers, stats.cached_blocks) == ({}, 4)  # a and c begin with the same block


def test_forty_sequences_share_steps():
    engine = make_engine(make_runner(blocks=400), tokens_per_step=256, sequences_max=64)
    for index in range(40):
        engine.add(make_request(f"r{index}", 4 + index, max_tokens=5 + index % 7))
    said = drain(engine)
    assert len(said.done) == 40
    assert max(step.sequences for step in said.steps) > 30
    assert len(said.steps) < 40


def test_a_runner_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="blocks of 4"):
        Engine(make_runner(), VOCABULARY, EngineConfig(block_size=8, context_length=64))


def test_a_step_tells_which_requests_it_begins():
    engine = make_engine(make_runner())
    engine.add(make_request("a", prompts=(HI, [*HI, *HI]), n=2))
    engine.add(make_request("b"))
    begun = []
    while engine.has_work:
        begun += engine.step().started
    assert sorted(begun) == ["a", "b"]
