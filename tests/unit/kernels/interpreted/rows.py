"""Sampling parameters of the engine's own type, as the tensors that the kernels take."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.sampling import DrawParams, LogitEdits, TokenLists
from worker.engine.batch import SampleParams


def row(**changes) -> SampleParams:
    return SampleParams(
        **({"temperature": 1.0, "top_p": 1.0, "seed": 7, "choice": 0, "position": 3, "logprobs": 0} | changes)
    )


def draw_params(rows: Sequence[SampleParams]) -> DrawParams:
    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.tensor([getattr(each, name) for each in rows], dtype=dtype)

    return DrawParams(
        temperature=column("temperature", torch.float32),
        top_k=column("top_k", torch.int32),
        top_p=column("top_p", torch.float32),
        min_p=column("min_p", torch.float32),
        seed=torch.from_numpy(np.array([each.seed for each in rows], np.uint64).view(np.int64)),
        choice=column("choice", torch.int64),
        position=column("position", torch.int64),
    )


def token_lists(rows: Sequence[tuple[Sequence[int], Sequence[float]]]) -> TokenLists:
    starts = np.cumsum([0, *(len(ids) for ids, _ in rows)])
    ids = [token for ids, _ in rows for token in ids]
    values = [value for _, values in rows for value in values]
    # The buffers are longer than what is in use, and what is past it names no token.
    return TokenLists(
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor([*ids, -5], dtype=torch.int32),
        torch.tensor([*values, float("nan")], dtype=torch.float32),
    )


def logit_edits(rows: Sequence[SampleParams]) -> LogitEdits:
    def column(name: str) -> Tensor:
        return torch.tensor([getattr(each, name) for each in rows], dtype=torch.float32)

    return LogitEdits(
        bias=token_lists([(each.bias.ids, each.bias.values) if each.bias else ((), ()) for each in rows]),
        seen=token_lists([(each.seen.ids, each.seen.generated) if each.seen else ((), ()) for each in rows]),
        banned=token_lists([(list(each.banned), [0.0] * len(each.banned)) for each in rows]),
        repetition=column("repetition_penalty"),
        presence=column("presence_penalty"),
        frequency=column("frequency_penalty"),
    )
