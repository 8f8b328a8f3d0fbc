"""Rows of logits with the options of their requests, and the time that sampling them takes.

The logits are synthetic: ranks follow Zipf's law with some noise, as a language model's do, so that a nucleus is small;
the "wide" ones are nearly flat, so that it is not.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from worker.engine.batch import LogitBias, SampleParams
from worker.engine.sampler import sample
from worker.engine.token_counts import TokenCounts

VOCAB = 49_152  # the demo model's
PROMPT, OUTPUT = 200, 128  # tokens that the penalties count
ZIPF_EXPONENT = 1.4


def cost_ms(case: "Case", rows: int, repeats: int) -> float:
    """The fastest of some repeats: the time when nothing else runs."""
    logits, params = case.logits_of(rows), [case.params_of(row) for row in range(rows)]
    sample(logits, params)
    costs: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        sample(logits, params)
        costs.append(time.perf_counter() - start)
    return min(costs) * 1e3


def _usual(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    ranks = torch.randperm(VOCAB, generator=generator) + 1.0
    return -ZIPF_EXPONENT * ranks.log() + torch.randn(rows, VOCAB, generator=generator) * 0.3


def _wide(rows: int) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(0))


def _greedy(row: int) -> SampleParams:
    return SampleParams(7, 0.0, 1.0, row, 0)


def _sampled(row: int) -> SampleParams:
    return SampleParams(7, 1.0, 1.0, row, 0)


def _top_p(row: int) -> SampleParams:
    return SampleParams(7, 0.8, 0.9, row, 0)


def _everything(row: int) -> SampleParams:
    generator = torch.Generator().manual_seed(row)
    seen = TokenCounts(torch.randint(VOCAB, (PROMPT,), generator=generator).tolist())
    seen.add(torch.randint(VOCAB, (OUTPUT,), generator=generator).tolist())
    bias = LogitBias.of([(5, 1.0), (6, -2.0)])
    return SampleParams(7, 0.8, 0.9, row, 0, bias, 5, 50, 0.01, 1.1, 0.5, 0.5, seen, frozenset({0, 2}))


class Case(NamedTuple):
    name: str
    logits_of: Callable[[int], Tensor]
    params_of: Callable[[int], SampleParams]


CASES = (
    Case("greedy", _usual, _greedy),
    Case("temperature", _usual, _sampled),
    Case("temperature, top_p", _usual, _top_p),
    Case("the same, wide", _wide, _top_p),
    Case("everything, 5 logprobs", _usual, _everything),
)
