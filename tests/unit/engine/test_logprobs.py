"""Log-probabilities are of the distribution that the token was drawn from."""

import pytest
import torch

from worker.engine.batch import LogitBias, SampleParams, TokenLogprobs
from worker.engine.sampler import sample
from worker.engine.token_counts import TokenCounts

VOCAB = 300


def params(**changes) -> SampleParams:
    given = {"temperature": 1.0, "top_p": 1.0, "seed": 7, "choice": 0, "position": 3, "logprobs": 3}
    return SampleParams(**(given | changes))


def rows(count: int = 1) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(4)) * 3


def logprobs(logits: torch.Tensor, **changes) -> TokenLogprobs:
    (found,) = sample(logits, [params(**changes)]).logprobs
    assert found is not None
    return found


def check(found: TokenLogprobs, distribution: torch.Tensor) -> None:
    best = distribution.topk(len(found.top))
    assert [token for token, _ in found.top] == best.indices.tolist()
    assert [value for _, value in found.top] == pytest.approx(best.values.tolist(), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, 1e-5])
def test_of_arg_max_they_are_the_model_s_own(temperature: float):
    logits = rows()
    found = logprobs(logits, temperature=temperature, top_p=0.5, top_k=1)
    check(found, logits[0].double().log_softmax(-1))
    assert found.logprob == found.top[0][1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_penalties_and_bans_are_in_them(temperature: float):
    logits = rows()
    counts = TokenCounts([1])
    counts.add([2, 2])
    changed = logits[0].double()
    changed[5] += 100
    changed[2] -= 2 * 1.5
    changed[5] = -torch.inf
    best = int(changed.argmax())
    bias = LogitBias.of([(5, 100.0)])
    found = logprobs(
        logits, temperature=temperature, bias=bias, seen=counts, frequency_penalty=1.5, banned=frozenset({5})
    )
    check(found, changed.log_softmax(-1))
    assert found.top[0][0] == best


def test_temperature_is_in_them():
    logits = rows()
    check(logprobs(logits, temperature=0.6), (logits[0].double() / 0.6).log_softmax(-1))


def test_truncated_tokens_are_not_listed_and_the_rest_sums_to_one():
    found = logprobs(rows(), top_k=2, logprobs=20)
    assert len(found.top) == 2
    assert sum(torch.tensor([value for _, value in found.top]).exp().tolist()) == pytest.approx(1.0, abs=1e-6)
    assert found.logprob in [value for _, value in found.top]


def test_more_than_the_vocabulary_are_all_of_it():
    assert len(logprobs(rows(), logprobs=VOCAB + 5).top) == VOCAB


def test_each_row_has_as_many_as_it_asked_for():
    wanted = [2, None, 0, 5]
    found = sample(rows(4), [params(logprobs=count) for count in wanted]).logprobs
    assert [None if each is None else len(each.top) for each in found] == wanted
