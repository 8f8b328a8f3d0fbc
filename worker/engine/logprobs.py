"""The log-probabilities that a client asked for: of the distribution that the token was drawn from.

That is after bias, penalties, bans, temperature and truncation, renormalised; for arg max, where temperature has no
meaning, after bias, penalties and bans, at temperature 1. Tokens that could not be drawn are not listed, so there may
be fewer alternatives than asked for, as OpenAI documents too.
"""

import math

import torch
from torch import Tensor

from worker.engine.batch import SampleParams, TokenLogprobs


def logprobs_of(scaled: Tensor, floors: Tensor, ids: Tensor, params: list[SampleParams]) -> list[TokenLogprobs | None]:
    """scaled: [rows, vocab]; floors: [rows, 1] the least logit that could be drawn; ids: [rows] the tokens drawn."""
    found: list[TokenLogprobs | None] = [None] * len(params)
    rows = [row for row, p in enumerate(params) if p.logprobs is not None]
    if not rows:
        return found
    values = scaled[rows]
    logprobs = torch.where(values < floors[rows], -math.inf, values).log_softmax(-1)
    chosen: list[float] = logprobs.gather(1, ids[rows].unsqueeze(1)).squeeze(1).tolist()
    counts = [params[row].logprobs or 0 for row in rows]
    top = logprobs.topk(min(max(counts), logprobs.shape[1]))
    top_ids: list[list[int]] = top.indices.tolist()
    top_values: list[list[float]] = top.values.tolist()
    for row, count, logprob, others, values_ in zip(rows, counts, chosen, top_ids, top_values, strict=True):
        pairs = zip(others[:count], values_[:count], strict=True)
        found[row] = TokenLogprobs(logprob, tuple(pair for pair in pairs if pair[1] > -math.inf))
    return found
