"""min_p, top_k and top_p against a plain float64 oracle, through the whole distribution that the sampler reports."""

import math

import numpy as np
import pytest
import torch

from worker.engine.batch import SampleParams
from worker.engine.sampler import sample
from worker.engine.truncation import CANDIDATES, CANDIDATES_MORE

VOCAB = 9_000  # more than the candidates that are looked at before a row is sorted


def params(**changes) -> SampleParams:
    return SampleParams(**({"temperature": 1.0, "top_p": 1.0, "seed": 7, "choice": 0, "position": 3} | changes))


def kept(logits: torch.Tensor, **changes) -> dict[int, float]:
    """What may be drawn, and with what log-probability."""
    got = sample(logits.unsqueeze(0), [params(logprobs=len(logits), **changes)])
    assert got.errors == {}
    found = got.logprobs[0]
    assert found is not None
    assert found.logprob == dict(found.top)[got.ids[0]]
    return dict(found.top)


def oracle(logits: torch.Tensor, *, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0) -> dict[int, float]:
    """One token at a time, in float64."""
    values = logits.double().numpy()
    order = [int(token) for token in np.argsort(-values, kind="stable")]
    alive = [token for token in order if math.exp(values[token] - values[order[0]]) >= min_p]
    if top_k:
        alive = alive[:top_k]
    total = sum(math.exp(values[token]) for token in alive)
    nucleus, mass = [], 0.0
    for token in alive:
        nucleus.append(token)
        mass += math.exp(values[token]) / total
        if top_p < 1 and mass >= top_p:
            break
    total = sum(math.exp(values[token]) for token in nucleus)
    return {token: math.log(math.exp(values[token]) / total) for token in nucleus}


@pytest.mark.parametrize("spread", [0.3, 3.0, 8.0], ids=["flat", "usual", "peaked"])
@pytest.mark.parametrize(
    "limits",
    [
        {"top_p": 0.9},
        {"top_p": 0.02},
        {"top_p": 0.9995},
        {"top_k": 1},
        {"top_k": CANDIDATES - 1},
        {"top_k": CANDIDATES},
        {"top_k": CANDIDATES + 1},
        {"top_k": CANDIDATES_MORE},
        {"top_k": VOCAB - 1},
        {"min_p": 0.1},
        {"min_p": 1e-5},
        {"top_k": 40, "top_p": 0.8},
        {"top_k": 500, "top_p": 0.8},
        {"top_k": CANDIDATES_MORE + 1, "top_p": 0.99},
        {"min_p": 0.3, "top_p": 0.7},
        {"min_p": 1e-4, "top_p": 0.7},
        {"min_p": 0.02, "top_k": 30, "top_p": 0.95},
    ],
    ids=str,
)
def test_what_is_kept_is_what_the_oracle_keeps(spread: float, limits: dict[str, float]):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(5)) * spread
    got, expected = kept(logits, **limits), oracle(logits, **limits)
    assert set(got) == set(expected)
    assert list(got.values()) == pytest.approx(list(expected.values()), abs=2e-4)


@pytest.mark.parametrize(
    ("limits", "best_only"),
    [
        ({"top_p": 0.0}, True),
        ({"top_p": 1e-9}, True),
        ({"top_k": 1}, True),
        ({"min_p": 1.0}, True),
        ({"top_p": 1.0}, False),
        ({"top_k": 0}, False),
        ({"top_k": VOCAB}, False),
        ({"top_k": 2**31 - 1}, False),
        ({"min_p": 0.0}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_edge_values_keep_the_best_or_everything(limits: dict[str, float], best_only: bool, temperature: float):
    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(6))
    got = kept(logits, temperature=temperature, **limits)
    assert set(got) == ({int(logits.argmax())} if best_only else set(range(VOCAB)))
    exact = (logits.double() / temperature).log_softmax(-1)
    if not best_only:
        assert [got[token] for token in range(VOCAB)] == pytest.approx(exact.tolist(), abs=2e-4)


@pytest.mark.parametrize("limits", [{"top_p": 0.1}, {"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}], ids=str)
@pytest.mark.parametrize("vocab", [4, CANDIDATES, CANDIDATES + 1, VOCAB])
def test_tokens_equal_to_the_last_one_kept_all_stay(limits: dict[str, float], vocab: int):
    assert len(kept(torch.zeros(vocab), **limits)) == vocab


@pytest.mark.parametrize("limits", [{"top_p": 0.5}, {"top_k": 2}, {"min_p": 0.2}, {"top_p": 0.999}], ids=str)
def test_draws_follow_what_is_left(limits: dict[str, float]):
    logits = torch.log(torch.tensor([0.02, 0.45, 0.35, 0.15, 0.03]))
    count = 8_000
    got = sample(logits.repeat(count, 1), [params(position=n, **limits) for n in range(count)]).ids
    shares = torch.bincount(torch.tensor(got), minlength=5) / count
    expected = oracle(logits, **limits)
    wanted = torch.tensor([math.exp(expected[token]) if token in expected else 0.0 for token in range(5)])
    torch.testing.assert_close(shares, wanted, rtol=0, atol=0.02)


def test_draws_reach_the_far_end_of_a_wide_nucleus():
    even = torch.zeros(CANDIDATES_MORE * 3)
    even[: CANDIDATES_MORE * 2] += 1e-3 * torch.rand(CANDIDATES_MORE * 2, generator=torch.Generator().manual_seed(1))
    got = sample(even.repeat(300, 1), [params(position=n, top_p=0.6) for n in range(300)]).ids
    assert max(got) < CANDIDATES_MORE * 2
    assert len(set(got)) > 250


def test_one_row_s_limits_are_not_its_neighbour_s():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(8)).repeat(4, 1)
    asked = [params(logprobs=VOCAB, **limits) for limits in ({"top_k": 3}, {}, {"top_p": 0.3}, {"min_p": 0.9})]
    lists = [found.top for found in sample(logits, asked).logprobs if found is not None]
    assert [len(top) for top in lists] == [
        3,
        VOCAB,
        len(oracle(logits[0], top_p=0.3)),
        len(oracle(logits[0], min_p=0.9)),
    ]
