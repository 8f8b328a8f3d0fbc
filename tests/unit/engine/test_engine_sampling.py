"""What the engine makes of sampling parameters: where a text ends, what the runner is told, whose fault is whose."""

from collections.abc import Iterable

import pytest
import torch

from tests.unit.engine.builders import (
    BLOCK_SIZE,
    EOS,
    EOT,
    VOCABULARY,
    ScriptedRunner,
    Transcript,
    drain,
    make_engine,
    make_request,
    make_sequence,
    token,
)
from worker.engine.batch import Batch, Sampled, SampleParams
from worker.engine.errors import InvalidRequest
from worker.engine.request import EngineRequest
from worker.engine.sampler import sample

A, B, C = token("a"), token("b"), token("c")


class LogitsRunner:
    """Real sampling over made-up logits: of each row as often as it is asked the same, a function of the last token.
    `poisoned` are the last tokens whose rows are not finite."""

    def __init__(self, *, blocks: int = 64, poisoned: Iterable[int] = ()) -> None:
        self.vocab_size = VOCABULARY.vocab_size
        self.block_size = BLOCK_SIZE
        self.blocks_total = blocks + 1
        self.context_length = 512
        self.steps_ahead = 0
        self.told: list[SampleParams] = []
        self._logits = torch.randn(self.vocab_size, self.vocab_size, generator=torch.Generator().manual_seed(1)) * 2
        self._logits[list(poisoned), 5] = torch.nan

    def submit(self, batch: Batch) -> Sampled:
        self.told += batch.samples
        return sample(self._logits[torch.from_numpy(batch.ids[batch.sample_rows])], batch.samples)

    def close(self) -> None:
        pass


def run(*requests: EngineRequest, runner: LogitsRunner | ScriptedRunner, **config: float) -> Transcript:
    engine = make_engine(runner, **config)
    for request in requests:
        engine.add(request)
    return drain(engine)


def scripted(script: list[int], **options: object) -> Transcript:
    return run(make_request(**options), runner=ScriptedRunner({0: script}, prompt_len=5))


def test_a_stop_id_ends_the_text_without_showing():
    said = scripted([A, B, C, A], stop_token_ids=(C, EOT))
    assert said.ids["r", 0] == [A, B, C]
    assert (said.text["r", 0], said.finish["r", 0]) == ("ab", "stop")
    assert said.done["r"].totals.completion_tokens == 3


def test_a_stop_id_ends_a_text_that_ignores_the_end_of_sequence():
    said = scripted([A, EOS, B, EOT, C, A], stop_token_ids=(C,), ignore_eos=True)
    assert (said.text["r", 0], said.finish["r", 0]) == ("ab", "stop")


def test_an_end_of_sequence_that_is_ignored_may_be_a_stop_id():
    said = scripted([A, EOT, EOS, B], stop_token_ids=(EOS,), ignore_eos=True)
    assert said.ids["r", 0] == [A, EOT, EOS]


@pytest.mark.parametrize("ids", [(-1,), (VOCABULARY.vocab_size,), (A, 10**6)])
def test_stop_ids_outside_the_vocabulary_are_refused(ids: tuple[int, ...]):
    with pytest.raises(InvalidRequest, match="stop_token_ids"):
        make_engine().add(make_request(stop_token_ids=ids))


def test_what_ends_a_text_is_banned_until_min_tokens():
    runner = LogitsRunner()
    run(make_request(min_tokens=3, max_tokens=5, stop_token_ids=(A,), logit_bias=((EOS, -100.0),)), runner=runner)
    assert [params.banned for params in runner.told[:4]] == [{EOS, EOT, A}] * 3 + [set()]


@pytest.mark.parametrize("forced", [EOS, A])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_min_tokens_holds_even_against_a_forced_end(forced: int, temperature: float):
    request = make_request(
        min_tokens=4, max_tokens=9, stop_token_ids=(A,), logit_bias=((forced, 100.0),), temperature=temperature
    )
    ids = run(request, runner=LogitsRunner()).ids["r", 0]
    assert len(ids) == 5
    assert ids[4] == forced
    assert not {EOS, EOT, A} & set(ids[:4])


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a"), (3, "a"), (4, "abca"), (6, "abca"), (7, "abcabcab")])
def test_a_stop_string_ends_no_text_before_min_tokens(min_tokens: int, text: str):
    said = scripted([A, B, C] * 3, stop=("bc",), min_tokens=min_tokens, max_tokens=8)
    assert said.text["r", 0] == text
    assert len(said.ids["r", 0]) >= min_tokens


def test_ignored_ends_are_not_banned():
    runner = LogitsRunner()
    run(make_request(min_tokens=2, max_tokens=2, ignore_eos=True), runner=runner)
    assert [params.banned for params in runner.told] == [set(), set()]


def test_the_fake_runner_holds_min_tokens_too():
    request = make_request(min_tokens=3, max_tokens=9, logit_bias=((EOS, 100.0),))
    engine = make_engine()
    engine.add(request)
    assert len(drain(engine).ids["r", 0]) == 4


def test_a_sequence_without_penalties_counts_nothing():
    sequence = make_sequence(0, 3)
    assert SampleParams(3, *sequence.next_manner()).seen is sequence.seen is None


def test_the_penalties_count_what_was_generated_and_survive_preemption():
    options = {"repetition_penalty": 1.2, "frequency_penalty": 0.5, "temperature": 1.0, "seed": 3, "max_tokens": 24}
    request = make_request("x", 6, tier=1, **options)
    urgent = [make_request(name, 4, temperature=1.0, seed=1, max_tokens=30, ignore_eos=True) for name in ("p", "q")]
    options_of = {"tokens_per_step": 8, "sequences_max": 3}
    alone = run(request, runner=LogitsRunner(), **options_of)
    squeezed = run(*urgent, request, runner=LogitsRunner(blocks=16), **options_of)
    assert sum(step.preemptions for step in squeezed.steps) > 0
    assert squeezed.ids["x", 0] == alone.ids["x", 0]
    free = run(
        make_request("x", 6, **(options | {"repetition_penalty": 1.0, "frequency_penalty": 0.0})), runner=LogitsRunner()
    )
    assert alone.ids["x", 0] != free.ids["x", 0]


def test_a_frequency_penalty_ends_a_loop():
    loop = make_request(max_tokens=60, temperature=0.0, ignore_eos=True)
    freed = make_request(max_tokens=60, temperature=0.0, ignore_eos=True, frequency_penalty=2.0)
    looping = run(loop, runner=LogitsRunner()).ids["r", 0]
    free = run(freed, runner=LogitsRunner()).ids["r", 0]
    assert len(set(free)) > 2 * len(set(looping))


def test_the_bias_is_made_once_for_all_choices_and_steps():
    runner = LogitsRunner()
    run(make_request(n=2, max_tokens=3, logit_bias=((A, 1.0),), ignore_eos=True), runner=runner)
    assert len({id(params.bias) for params in runner.told}) == 1


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "top_p": 0.9, "frequency_penalty": 1.0}])
def test_logits_that_are_not_finite_end_their_request_alone(options: dict):
    bad = make_request("bad", [A, A, B], max_tokens=6, logit_bias=((C, 100.0),), **options)
    others = [
        make_request(name, [A, size, A], max_tokens=6, ignore_eos=True, **options) for size, name in enumerate("uvw")
    ]
    expected = run(*others, runner=LogitsRunner())
    said = run(bad, *others, runner=LogitsRunner(poisoned=[B]))
    assert said.done["bad"].error == "engine_error"
    assert "not finite" in (said.done["bad"].message or "")
    assert {key: ids for key, ids in said.ids.items() if key[0] != "bad"} == expected.ids


def test_parameters_that_raise_end_their_request_alone():
    """Whatever passes every check and raises in the sampler nevertheless."""
    others = [make_request(name, 4, max_tokens=6, ignore_eos=True) for name in "uv"]
    said = run(others[0], make_request("bad", 5, top_p="all"), others[1], runner=LogitsRunner())
    assert said.done["bad"].error == "engine_error"
    assert "TypeError" in (said.done["bad"].message or "")
    assert {name: said.done[name].error for name in "uv"} == {"u": None, "v": None}
