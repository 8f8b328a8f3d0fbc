"""The most likely tokens of rows that were drawn, with log-probabilities of the distribution that each was drawn from.

    logprob = logit / temperature - total        of tokens at or above the row's floor (logit for arg max); -inf below

In plain torch, on the device of the logits, without waiting for it: few rows ask. Reads and writes a row of float32
about four times. Knows no request. Invariant: a row's result is its own.
"""

import math

import torch
from torch import Tensor

from kernels.sampling import BANNED, TEMPERATURE_MIN, Drawn


def alternatives(
    logits: Tensor, temperature: Tensor, drawn: Drawn, rows: Tensor, *, count: int
) -> tuple[Tensor, Tensor]:
    """Of these rows ([n] int64) the ids [n, count] int64 and log-probabilities [n, count] float32, most likely first.

    logits: [rows, vocab] as `draw_tokens` left them; temperature: [rows], the one that they were drawn with. Tokens
    that could not be drawn have -inf. No more than the vocabulary's are given.
    """
    chosen = logits[rows].float()
    divisors = torch.where(temperature[rows] >= TEMPERATURE_MIN, temperature[rows], 1.0).unsqueeze(1)
    x = (chosen / divisors).masked_fill_(chosen == BANNED, -math.inf)
    x = x.masked_fill_(x < drawn.floors[rows].unsqueeze(1), -math.inf) - drawn.totals[rows].unsqueeze(1)
    top = x.topk(min(count, x.shape[1]))
    return top.indices, top.values
