import math

import pytest
import torch

from worker.engine.batch import SampleParams, TokenLogprobs
from worker.engine.sampler import NUCLEUS_CANDIDATES, sample

VOCAB = 2_000


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


def test_top_p_keeps_the_fewest_that_reach_it():
    logits = torch.log(torch.tensor([0.02, 0.5, 0.3, 0.15, 0.03]))
    assert draws(logits, 2_000, top_p=0.7).nonzero().flatten().tolist() == [1, 2]
    assert draws(logits, 2_000, top_p=0.85).nonzero().flatten().tolist() == [1, 2, 3]
    assert draws(logits, 200, top_p=1e-9).nonzero().flatten().tolist() == [1]
    torch.testing.assert_close(draws(logits, 10_000, top_p=0.7)[1], torch.tensor(0.625), rtol=0, atol=0.02)


def test_top_p_sees_past_the_first_candidates():
    even = torch.zeros(NUCLEUS_CANDIDATES * 3)
    even[: NUCLEUS_CANDIDATES * 2] += 1e-3 * torch.rand(NUCLEUS_CANDIDATES * 2)
    got = draws(even, 500, top_p=0.6).nonzero().flatten()
    assert int(got.max()) < NUCLEUS_CANDIDATES * 2
    assert len(got) > 300


def test_equal_tokens_at_the_edge_of_the_nucleus_all_stay():
    got = draws(torch.zeros(4), 2_000, top_p=0.1)
    assert (got > 0.2).all()


def test_bias_forces_and_bans():
    logits = rows(3)
    best = logits.argmax(-1).tolist()
    got = sample(
        logits.clone(),
        [
            params(temperature=0.0, bias=((5, 100.0),)),
            params(temperature=0.0, bias=((best[1], -100.0),)),
            params(temperature=0.0),
        ],
    ).ids
    assert got[0] == 5
    assert got[1] == logits[1].topk(2).indices[1]
    assert got[2] == best[2]


def test_logprobs_are_of_the_logits_as_they_came():
    logits = rows(3)
    got = sample(
        logits.clone(),
        [
            params(temperature=0.0, bias=((5, 100.0),), logprobs=3),
            params(temperature=1.7, top_p=0.3, logprobs=0),
            params(),
        ],
    )
    exact = logits.double().log_softmax(-1)
    first, second, third = got.logprobs
    assert first is not None
    assert first.logprob == pytest.approx(float(exact[0, 5]), abs=1e-5)
    assert [token for token, _ in first.top] == exact[0].topk(3).indices.tolist()
    assert [value for _, value in first.top] == pytest.approx(exact[0].topk(3).values.tolist(), abs=1e-5)
    assert second == TokenLogprobs(pytest.approx(float(exact[1, got.ids[1]]), abs=1e-5), ())
    assert third is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("changes", [{"temperature": 0.0}, {"top_p": 0.5}, {}])
def test_a_row_that_is_not_finite_is_an_error_of_its_own(bad, changes):
    logits = rows(3)
    expected = sample(logits.clone(), [params(**changes)] * 3).ids
    logits[1, 17] = bad
    got = sample(logits, [params(**changes)] * 3)
    assert list(got.errors) == [1]
    assert "not finite" in got.errors[1]
    assert [got.ids[0], got.ids[2]] == [expected[0], expected[2]]


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
