import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.batch import LogitBias, SampleParams
from worker.engine.sampler import SLICE_ELEMENTS, sample
from worker.engine.token_counts import TokenCounts

VOCAB = 2_000
BIAS = LogitBias.of([(5, 3.0), (40_000, -2.5)])
SEEN = TokenCounts([1, 2, 3, 40_008])
SEEN.add([3, 9, 9])
PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.0]),
        "top_p": st.sampled_from([0.0, 0.3, 0.9, 0.9999, 1.0]),
        "top_k": st.sampled_from([0, 1, 40, 5_000, 100_000]),
        "min_p": st.sampled_from([0.0, 1e-6, 0.05, 1.0]),
        "bias": st.just(BIAS),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3]),
        "frequency_penalty": st.sampled_from([-2.0, 0.5]),
        "seen": st.just(SEEN),
        "banned": st.just(frozenset({0, 40_008})),
        "logprobs": st.sampled_from([0, 5]),
    },
)


def params(**changes) -> SampleParams:
    given = {"temperature": 1.0, "top_p": 1.0, "seed": 7, "choice": 0, "position": 3} | changes
    return SampleParams(**given)


def rows(count: int, vocab: int = VOCAB, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draws(logits: torch.Tensor, count: int, **changes) -> torch.Tensor:
    """How often each token is drawn from one row at `count` positions, as a share."""
    got = sample(logits.repeat(count, 1), [params(position=n, **changes) for n in range(count)])
    return torch.bincount(torch.tensor(got.ids), minlength=len(logits)) / count


@pytest.mark.parametrize("temperature", [0.0, 1e-9, 9e-4])
def test_no_temperature_is_arg_max(temperature):
    logits = rows(5)
    assert sample(logits.clone(), [params(temperature=temperature)] * 5).ids == logits.argmax(-1).tolist()


def test_a_draw_depends_on_its_row_and_its_counter_alone():
    logits, wanted = rows(6), [params(seed=n, position=2 * n, top_p=0.9 if n % 2 else 1.0) for n in range(6)]
    together = sample(logits.clone(), wanted).ids
    alone = [sample(logits[n : n + 1].clone(), wanted[n : n + 1]).ids[0] for n in range(6)]
    backwards = sample(logits.flip(0).clone(), wanted[::-1]).ids[::-1]
    loud = torch.cat([logits, torch.full((1, VOCAB), 1e30)])
    beside_a_loud_one = sample(loud, [*wanted, params(top_p=0.5)]).ids[:-1]
    assert together == alone == backwards == beside_a_loud_one


@pytest.mark.parametrize("changed", [{"seed": 8}, {"seed": 7 + (1 << 63)}, {"choice": 1}, {"position": 4}])
def test_seed_choice_and_position_each_change_the_draw(changed):
    logits = torch.zeros(1, VOCAB)
    first = [sample(logits.clone(), [params(position=3 + 10 * n)]).ids[0] for n in range(20)]
    given = params(**changed)
    other = [
        sample(logits.clone(), [params(seed=given.seed, choice=given.choice, position=given.position + 10 * n)]).ids[0]
        for n in range(20)
    ]
    assert sum(a == b for a, b in zip(first, other, strict=True)) <= 2


def test_draws_follow_the_distribution():
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01]))
    got = draws(logits, 20_000)
    torch.testing.assert_close(got, logits.exp(), rtol=0, atol=0.012)


def test_draws_over_a_whole_vocabulary_are_even():
    """Among equal tokens every part of the vocabulary is as likely: no bit of the hash is stuck."""
    got = draws(torch.zeros(1024), 4_000).view(16, 64).sum(1)
    torch.testing.assert_close(got, torch.full((16,), 1 / 16), rtol=0, atol=0.012)


def test_neighbouring_positions_are_independent():
    logits = torch.zeros(8_000, 2)
    ids = torch.tensor(sample(logits, [params(position=n) for n in range(8_000)]).ids, dtype=torch.float32)
    pair = torch.stack([ids[:-1], ids[1:]])
    assert abs(float(torch.corrcoef(pair)[0, 1])) < 0.04


def test_temperature_flattens():
    logits = torch.log(torch.tensor([0.8, 0.2]))
    hot = draws(logits, 10_000, temperature=2.0)
    torch.testing.assert_close(hot, (logits / 2).softmax(-1), rtol=0, atol=0.02)


@settings(max_examples=8)
@given(st.lists(PARAMS, min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.booleans())
def test_a_row_gets_the_same_answer_in_any_company(wanted: list[dict], seed: int, peaked: bool):
    """Ids and log-probabilities, bit for bit, whatever is asked for, at a size where torch uses several threads."""
    logits = rows(len(wanted), vocab=40_009, seed=seed) * (2 if peaked else 0.5)
    asked = [params(**changes, seed=seed + n) for n, changes in enumerate(wanted)]
    together = sample(logits, asked)
    for n, one in enumerate(asked):
        alone = sample(logits[n : n + 1].clone(), [one])
        assert (alone.ids[0], alone.logprobs[0]) == (together.ids[n], together.logprobs[n])
    backwards = sample(logits.flip(0), asked[::-1])
    assert (backwards.ids[::-1], backwards.logprobs[::-1]) == (together.ids, together.logprobs)


def test_a_batch_of_several_slices_is_as_its_rows(monkeypatch: pytest.MonkeyPatch):
    logits, wanted = rows(7), [params(seed=n, logprobs=2, top_p=0.8 if n % 2 else 1.0) for n in range(7)]
    logits[5, 3] = math.nan
    whole = sample(logits, wanted)
    monkeypatch.setitem(SLICE_ELEMENTS, "cpu", 3 * VOCAB)
    in_slices = sample(logits, wanted)
    assert in_slices.ids[:5] == whole.ids[:5]
    assert in_slices.logprobs[:5] == whole.logprobs[:5]
    assert list(in_slices.errors) == list(whole.errors) == [5]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 3, "logprobs": 2}, {}])
def test_a_row_that_is_not_finite_is_an_error_of_its_own(bad, changes):
    logits = rows(3)
    expected = sample(logits.clone(), [params(**changes)] * 3).ids
    logits[1, 17] = bad
    got = sample(logits, [params(**changes)] * 3)
    assert list(got.errors) == [1]
    assert "not finite" in got.errors[1]
    assert [got.ids[0], got.ids[2]] == [expected[0], expected[2]]


def test_infinity_beside_it_does_not_reach_a_row_that_asks_for_everything():
    asked = params(top_p=0.9, top_k=50, min_p=0.01, bias=LogitBias.of([(7, 1.0)]), banned=frozenset({3}), logprobs=5)
    logits = rows(3)
    alone = sample(logits[:1].clone(), [asked])
    logits[1], logits[2] = math.inf, math.nan
    beside = sample(logits, [asked] * 3)
    assert list(beside.errors) == [1, 2]
    assert (beside.ids[0], beside.logprobs[0]) == (alone.ids[0], alone.logprobs[0])


def test_a_row_whose_tokens_are_all_banned_is_an_error_of_its_own():
    logits = rows(3)
    expected = sample(logits, [params()] * 3).ids
    everything = frozenset(range(VOCAB))
    for temperature in (0.0, 1.0):
        got = sample(logits, [params(), params(temperature=temperature, top_p=0.9, banned=everything), params()])
        assert got.errors == {1: "every token is banned"}
        assert [got.ids[0], got.ids[2]] == [expected[0], expected[2]]


@pytest.mark.parametrize("place", [-1, VOCAB, VOCAB + 17])
@pytest.mark.parametrize("row", [0, 2, 4])
def test_what_one_row_raises_ends_that_row_alone(place: int, row: int):
    """An id outside the vocabulary would be a place in a neighbour's row."""
    logits, wanted = rows(5), [params(bias=LogitBias.of([(3, 2.0)]), logprobs=2)] * 5
    expected = sample(logits.clone(), wanted)
    wanted[row] = params(bias=LogitBias.of([(place, 100.0)]))
    got = sample(logits, wanted)
    assert got.errors == {row: "IndexError in the sampler"}
    for other in set(range(5)) - {row}:
        assert (got.ids[other], got.logprobs[other]) == (expected.ids[other], expected.logprobs[other])


def test_the_logits_are_left_as_they_came():
    logits = rows(2)
    before = logits.clone()
    sample(logits, [params(bias=LogitBias.of([(1, 5.0)]), banned=frozenset({4}), top_p=0.5, logprobs=1), params()])
    assert torch.equal(logits, before)


def test_no_rows_are_no_tokens():
    assert sample(torch.zeros(0, VOCAB), []).ids == []


def test_extreme_logits_are_sampled():
    logits = torch.tensor([[1e30, -1e30, 0.0], [-1e30, -1e30, -1e30]])
    got = sample(logits, [params(), params(top_p=0.5)])
    assert got.ids[0] == 0
    assert got.errors == {}


def test_the_draws_do_not_change_between_versions():
    """A seed is a promise to clients and to recovery on another worker: the same tokens for ever."""
    logits = torch.linspace(0, 3, 50_000).repeat(6, 1)
    wanted = [params(seed=s, choice=c, position=p) for s, c, p in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]]
    wanted += [params(seed=2**64 - 1, position=1 << 20), params(seed=5, top_p=0.5, temperature=0.7)]
    assert sample(logits, wanted).ids == [44585, 348, 30737, 42391, 47289, 42358]
