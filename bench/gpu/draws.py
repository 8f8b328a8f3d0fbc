"""The drawing of tokens: cases for both parts of the check.

A draw has no error ratio of its own. What is compared are the log-probabilities of the tokens drawn, of rows in which
both drew the same; that all rows but those whose two best are closer than rounding do is counted.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from bench.gpu.machine import Machine
from bench.gpu.part import Case, Job
from kernels import reference_sampling, token_draw
from kernels.sampling import DrawParams

DIFFERENT_MAX = 0.02  # of the rows


def cases(machine: Machine) -> Iterator[Case]:
    for rows, vocab in ((4, 200),) if machine.dry else ((64, 32_003), (16, 128_256)):
        yield Case("draw_tokens", torch.float32, f"{rows} x {vocab}", lambda r=rows, v=vocab: _drawn(machine, r, v))


def jobs(machine: Machine, rows: int) -> Iterator[Job]:
    vocab = 200 if machine.dry else 128_256
    logits = torch.randn(rows, vocab, device=machine.device) * 3
    for name, truncates in (("draw_tokens", False), ("draw_tokens, top_p", True)):
        params = _params(machine, rows, truncates=truncates)
        yield Job(
            name,
            f"{rows} x {vocab}",
            lambda params=params: token_draw.draw_tokens(logits, params),
            lambda: torch.multinomial(logits.softmax(-1), 1),
            logits.nbytes,
        )


def _drawn(machine: Machine, rows: int, vocab: int) -> tuple[Tensor, Tensor]:
    logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(9)) * 3
    params = _params(machine, rows, truncates=True)
    got = token_draw.draw_tokens(logits.to(machine.device), params)
    host = DrawParams(*(getattr(params, name).cpu() for name in DrawParams.__slots__))
    want = reference_sampling.draw_tokens(logits.clone(), host)
    same = got.ids.cpu() == want.ids
    if (~same).float().mean() > DIFFERENT_MAX:
        raise RuntimeError(f"{int((~same).sum())} of {rows} rows drew another token")
    return got.logprobs.cpu()[same], want.logprobs[same]


def _params(machine: Machine, rows: int, *, truncates: bool) -> DrawParams:
    """Every fourth row is arg max."""
    device, every = machine.device, torch.arange(rows)
    return DrawParams(
        temperature=torch.where(every % 4 == 0, 0.0, 0.8).to(device),
        top_k=torch.full((rows,), 50 if truncates else 0, dtype=torch.int32, device=device),
        top_p=torch.full((rows,), 0.9 if truncates else 1.0, device=device),
        min_p=torch.zeros(rows, device=device),
        seed=every.to(device),
        choice=torch.zeros(rows, dtype=torch.int64, device=device),
        position=(every + 5).to(device),
    )
