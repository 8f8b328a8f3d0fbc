"""Bias, penalties and bans, against plain arithmetic on one row."""

import math

import pytest
import torch

from worker.engine.batch import LogitBias, SampleParams
from worker.engine.logits import process
from worker.engine.sampler import sample
from worker.engine.token_counts import TokenCounts

VOCAB = 50


def params(**changes) -> SampleParams:
    return SampleParams(**({"temperature": 0.0, "top_p": 1.0, "seed": 7, "choice": 0, "position": 3} | changes))


def rows(count: int = 1) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(3)) * 4


def seen(prompt: list[int], output: list[int]) -> TokenCounts:
    counts = TokenCounts(prompt)
    counts.add(output)
    return counts


def test_nothing_asked_is_nothing_done():
    logits = rows()
    assert process(logits, [params(repetition_penalty=1.5)]) is logits  # without counts there is no penalty


def test_a_bias_is_added_to_its_token_of_its_row():
    logits = rows(3)
    got = process(logits, [params(), params(bias=LogitBias.of([(4, 2.5), (49, -7.0), (4, 3.0)])), params()])
    expected = logits.clone()
    expected[1, 4] += 3.0  # named twice: the last counts
    expected[1, 49] -= 7.0
    assert torch.equal(got, expected)


def test_a_bias_forces_bans_and_uniformly_changes_nothing():
    logits = rows(4)
    best = logits.argmax(-1).tolist()
    biases = [[(5, 100.0)], [(best[1], -100.0)], [(token, -100.0) for token in range(VOCAB)], [(0, 0.0)]]
    got = sample(logits, [params(bias=LogitBias.of(pairs)) for pairs in biases])
    assert got.ids == [5, int(logits[1].topk(2).indices[1]), best[2], best[3]]
    assert got.errors == {}


@pytest.mark.parametrize("frequency", [-2.0, 0.0, 0.7, 2.0])
@pytest.mark.parametrize("presence", [-2.0, 0.0, 0.7, 2.0])
def test_frequency_and_presence_count_the_output_alone(frequency: float, presence: float):
    logits = rows()
    asked = params(frequency_penalty=frequency, presence_penalty=presence, seen=seen([1, 1, 2], [2, 3, 3, 3]))
    expected = logits.clone()
    expected[0, 2] -= frequency + presence
    expected[0, 3] -= 3 * frequency + presence
    torch.testing.assert_close(process(logits, [asked]), expected)


@pytest.mark.parametrize("penalty", [0.5, 1.3, 2.0])
def test_repetition_counts_prompt_and_output_once_and_by_sign(penalty: float):
    logits = rows()
    logits[0, [1, 2, 3]] = torch.tensor([4.0, -3.0, 0.0])
    got = process(logits, [params(repetition_penalty=penalty, seen=seen([1, 1], [2, 2, 3]))])
    expected = logits.clone()
    expected[0, [1, 2, 3]] = torch.tensor([4.0 / penalty, -3.0 * penalty, 0.0])
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("penalty", [1e-300, 1e-38, 1e-6])
def test_the_least_repetition_penalties_stay_finite(penalty: float):
    logits = rows(2)
    logits[0, :3] = torch.tensor([4.0, 0.0, -4.0])
    asked = params(temperature=0.001, repetition_penalty=penalty, seen=seen([0, 1, 2], []), logprobs=2)
    got = sample(logits, [asked, params(temperature=1.0)])
    assert got.errors == {}
    assert got.ids[0] == 0
    assert got.logprobs[0] is not None
    assert math.isfinite(got.logprobs[0].logprob)


def test_penalties_come_after_the_bias_and_bans_after_all():
    logits = rows(1)
    logits[0, 7] = -2.0
    asked = params(
        bias=LogitBias.of([(7, 5.0), (8, 100.0)]),
        repetition_penalty=2.0,
        presence_penalty=0.25,
        seen=seen([], [7, 8]),
        banned=frozenset({8}),
    )
    got = process(logits, [asked])
    assert float(got[0, 7]) == (-2.0 + 5.0) / 2 - 0.25
    assert float(got[0, 8]) == -math.inf


def test_each_row_has_its_own_penalties():
    logits = rows(1).repeat(4, 1)
    asked = [
        params(frequency_penalty=1.0, seen=seen([], [3])),
        params(),
        params(frequency_penalty=2.0, seen=seen([], [])),
        params(frequency_penalty=0.5, seen=seen([], [49, 49])),
    ]
    changed = logits - process(logits, asked)
    expected = torch.zeros(4, VOCAB)
    expected[0, 3], expected[3, 49] = 1.0, 1.0
    torch.testing.assert_close(changed, expected)
