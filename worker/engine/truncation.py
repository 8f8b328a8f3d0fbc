"""Truncation: which tokens min_p, top_k and top_p, in this order, let be drawn, as one least logit ("floor") per row.

Examines the most likely tokens first, and sorts a whole row only if very many of its tokens may be drawn. Tokens equal
to the last one kept stay in, so nothing depends on the order of a sort. Every sum is over a row by itself: torch may
split a plain sum between threads by the shape of the whole tensor; softmax and cumsum never split a row.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from worker.engine.batch import SampleParams

CANDIDATES = 64  # how many are examined first
CANDIDATES_MORE = 4096  # how many then; finally all


def truncates(p: SampleParams) -> bool:
    return p.top_p < 1 or p.top_k > 0 or p.min_p > 0


@dataclass(slots=True)
class Limits:
    """The limits of each row, all [rows, 1]."""

    top_p: Tensor  # 1 is off
    top_k: Tensor  # 0 is off
    min_p_log: Tensor  # -infinity is off
    cut: bool  # whether a row has top_k or min_p

    @classmethod
    def of(cls, params: list[SampleParams], vocab_size: int, device: torch.device) -> "Limits":
        ks = [p.top_k if p.top_k < vocab_size else 0 for p in params]
        return cls(
            torch.tensor([p.top_p for p in params], device=device).unsqueeze(1),
            torch.tensor(ks, device=device).unsqueeze(1),
            torch.tensor([p.min_p for p in params], device=device).log_().unsqueeze(1),
            any(ks) or any(p.min_p > 0 for p in params),
        )

    def of_rows(self, rows: Tensor) -> "Limits":
        return Limits(self.top_p[rows], self.top_k[rows], self.min_p_log[rows], self.cut)


def floors_of(top: Tensor, totals: Tensor, limits: Limits) -> tuple[Tensor, Tensor]:
    """[rows, 1] floors, given the n most likely logits of each row, [rows, n] in descending order; and [rows] bool,
    whether they suffice: if not, more than n tokens may be drawn. totals: [rows, 1] log of the sum of exp over the row.
    """
    last, n = top[:, -1:], top.shape[1]
    floors = torch.full_like(last, -math.inf)
    inside = torch.zeros_like(last, dtype=torch.bool)
    alive = top
    if limits.cut:
        floors = _cut(top, limits)
        inside = floors > last
        alive = torch.where(top < floors, -math.inf, top)
        totals = torch.where(inside, top[:, :1] - alive.log_softmax(-1)[:, :1], totals)
    # The first token at which the sum reaches top_p.
    edge = torch.searchsorted((alive - totals).exp_().cumsum_(-1), limits.top_p)
    reached = (edge < n) & (limits.top_p < 1)
    floors = torch.where(reached, torch.maximum(top.gather(1, edge.clamp_(max=n - 1)), floors), floors)
    uncut = (limits.top_k == 0) & torch.isneginf(limits.min_p_log)
    return floors, ((inside | uncut) & (floors > last)).squeeze(1)


def floors_of_wide(values: Tensor, totals: Tensor, limits: Limits) -> Tensor:
    """[rows, 1] floors of whole rows [rows, vocab] for which the first candidates did not suffice."""
    vocab_size = values.shape[1]
    floors, complete = floors_of(_most_likely(values, min(CANDIDATES_MORE, vocab_size)), totals, limits)
    rest = (~complete).nonzero().squeeze(1)
    if len(rest) and vocab_size > CANDIDATES_MORE:
        every = _most_likely(values[rest], vocab_size)
        floors[rest] = floors_of(every, totals[rest], limits.of_rows(rest))[0]
    return floors


def log_total(values: Tensor, best: Tensor) -> Tensor:
    """[rows, 1] log of the sum of exp over each row; best: [rows, 1] the index of its largest value."""
    return values.gather(1, best) - values.log_softmax(-1).gather(1, best)


def _most_likely(values: Tensor, n: int) -> Tensor:
    """[rows, n] the largest of each row in descending order. On a CPU by numpy: ten times as fast at it as torch."""
    if values.device.type != "cpu":
        return values.topk(n).values
    row = values.numpy()
    if n < row.shape[1]:
        row = np.partition(row, row.shape[1] - n, -1)[:, -n:]
    return torch.from_numpy(np.sort(row, -1)).flip(-1)


def _cut(top: Tensor, limits: Limits) -> Tensor:
    """Floors by min_p and top_k. A top_k beyond the values is off."""
    n = top.shape[1]
    kth = top.gather(1, (limits.top_k - 1).clamp_(0, n - 1))
    kth = kth.masked_fill_((limits.top_k < 1) | (limits.top_k > n), -math.inf)
    return torch.maximum(top[:, :1] + limits.min_p_log, kth)
