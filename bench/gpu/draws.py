"""The drawing of tokens: cases for both parts of the check.

A draw has no error ratio. For rows in which both sides drew the same token, the log-probabilities are compared; rows
that differ are counted, unless their two best scores are closer than rounding.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bench.gpu.machine import Machine
from bench.gpu.part import Case, Job
from kernels import reference_sampling, token_draw
from kernels.sampling import DrawParams, LogitEdits, TokenLists

DIFFERENT_MAX = 0.02  # of the rows


def cases(machine: Machine) -> Iterator[Case]:
    for rows, vocab in ((4, 200),) if machine.dry else ((64, 32_003), (16, 128_256)):
        for edited in (False, True):
            yield Case(
                "draw_tokens",
                torch.float32,
                f"{rows} x {vocab}" + (", edited" if edited else ""),
                lambda r=rows, v=vocab, e=edited: _drawn(machine, r, v, edited=e),
            )


def jobs(machine: Machine, rows: int) -> Iterator[Job]:
    vocab = 200 if machine.dry else 128_256
    logits = torch.randn(rows, vocab, device=machine.device) * 3
    for name, truncates in (("draw_tokens", False), ("draw_tokens, top_p", True)):
        params = on(machine.device, _params(rows, truncates=truncates))
        yield Job(
            name,
            f"{rows} x {vocab}",
            lambda params=params: token_draw.draw_tokens(logits, params),
            lambda: torch.multinomial(logits.softmax(-1), 1),
            logits.nbytes,
        )


def _drawn(machine: Machine, rows: int, vocab: int, *, edited: bool) -> tuple[Tensor, Tensor]:
    """Of edited rows the logits too: bits that a penalty has changed are those of the reference."""
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(9)) * 3
    params = _params(rows, truncates=True)
    edits = _edits(rows, vocab) if edited else None
    theirs = logits.to(machine.device, copy=True)
    got = token_draw.draw_tokens(theirs, on(machine.device, params), on(machine.device, edits))
    want = reference_sampling.draw_tokens(logits, params, edits)
    same = got.ids.cpu() == want.ids
    if (~same).float().mean() > DIFFERENT_MAX:
        raise RuntimeError(f"{int((~same).sum())} of {rows} rows drew another token")
    if edited and not torch.equal(theirs.cpu(), logits):
        raise RuntimeError("the edits made other logits")
    return got.logprobs.cpu()[same], want.logprobs[same]


def _params(rows: int, *, truncates: bool) -> DrawParams:
    """Every fourth row is arg max."""
    every = torch.arange(rows)
    return DrawParams(
        temperature=torch.where(every % 4 == 0, 0.0, 0.8),
        top_k=torch.full((rows,), 50 if truncates else 0, dtype=torch.int32),
        top_p=torch.full((rows,), 0.9 if truncates else 1.0),
        min_p=torch.zeros(rows),
        seed=every,
        choice=torch.zeros(rows, dtype=torch.int64),
        position=every + 5,
    )


def _edits(rows: int, vocab: int) -> LogitEdits:
    """A bias, penalties and bans for tokens all over the vocabulary; every third row has no lists."""
    chance = torch.Generator().manual_seed(10)
    lengths = torch.full((rows,), min(vocab // 2, 700))
    lengths[::3] = 0
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).int()

    def lists() -> TokenLists:
        ids = [torch.randperm(vocab, generator=chance)[:length] for length in lengths.tolist()]
        values = torch.randint(4, (int(starts[-1]),), generator=chance)
        return TokenLists(starts, torch.cat(ids).int(), values.float())

    rates = [torch.rand(rows, generator=chance) + 0.5 for _ in range(3)]
    return LogitEdits(lists(), lists(), lists(), *rates)


def on(device: torch.device, values: Any) -> Any:
    """The same with all of its tensors there."""
    if isinstance(values, Tensor) or values is None:
        return values if values is None else values.to(device)
    return type(values)(*(on(device, getattr(values, name)) for name in values.__slots__))
