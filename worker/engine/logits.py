"""Logit processing before a token is chosen: logit bias, penalties, banned tokens, in this order.

It is vLLM's order, too (and llama.cpp adds the bias first as well); see docs/adr/0004-sampling.md. Each touches only
the tokens that it names, of all rows at once. Refuses ids outside the vocabulary: one would be a place in the
neighbour's row.

* A bias is added, as OpenAI documents it. It bans nothing for certain: -100 for every token changes nothing.
* The repetition penalty divides a positive logit and multiplies a negative one (CTRL, Keskar et al., 2019), of every
  token in prompt or output. Frequency and presence penalties count the output alone, as OpenAI documents them:
  logit - count * frequency - (count > 0) * presence.
* Banned tokens cannot be drawn, whatever their bias.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.sampling import LOGIT_MAX, PENALTY_MIN
from worker.engine.batch import LogitBias, SampleParams
from worker.engine.token_counts import TokenCounts


def process(logits: Tensor, params: list[SampleParams]) -> Tensor:
    """The processed logits [rows, vocab]: `logits` itself if no row asks for anything. `logits` is never changed."""
    biased = [row for row, p in enumerate(params) if p.bias is not None]
    penalised = [row for row, p in enumerate(params) if p.seen is not None]
    banned = [row for row, p in enumerate(params) if p.banned]
    if not (biased or penalised or banned):
        return logits
    logits = logits.clone()
    if biased:
        _add_bias(logits, biased, [p.bias for p in params if p.bias is not None])
    if penalised:
        _penalise(logits, penalised, params, [p.seen for p in params if p.seen is not None])
    if banned:
        ids = [np.fromiter(params[row].banned, np.int64) for row in banned]
        logits.view(-1)[_places(logits, banned, ids)] = -math.inf
    return logits


def _add_bias(logits: Tensor, rows: list[int], biases: list[LogitBias]) -> None:
    places = _places(logits, rows, [bias.ids for bias in biases])
    values = np.concatenate([bias.values for bias in biases])
    logits.view(-1)[places] += torch.from_numpy(values).to(logits.device)


def _penalise(logits: Tensor, rows: list[int], params: list[SampleParams], seen: list[TokenCounts]) -> None:
    """Every token of a prompt costs something in each step, so only rows with a repetition penalty visit them."""
    repeated = [(row, own) for row, own in zip(rows, seen, strict=True) if params[row].repetition_penalty != 1]
    if repeated:
        _repeat(logits, repeated, params)
    counted = [
        (row, own)
        for row, own in zip(rows, seen, strict=True)
        if params[row].frequency_penalty or params[row].presence_penalty
    ]
    if counted:
        _count(logits, counted, params)


def _repeat(logits: Tensor, rows: list[tuple[int, TokenCounts]], params: list[SampleParams]) -> None:
    ids = [own.ids for _, own in rows]
    places = _places(logits, [row for row, _ in rows], ids)
    penalty = np.array([params[row].repetition_penalty for row, _ in rows], np.float32).clip(PENALTY_MIN)
    each = _per_place(penalty, ids).to(logits.device)
    values = logits.view(-1).index_select(0, places)
    _put(logits, places, torch.where(values > 0, values / each, values.mul(each)))


def _count(logits: Tensor, rows: list[tuple[int, TokenCounts]], params: list[SampleParams]) -> None:
    outputs = [own.output for _, own in rows]
    ids = [own.ids[output] for (_, own), output in zip(rows, outputs, strict=True)]
    counts = np.concatenate([own.generated[output] for (_, own), output in zip(rows, outputs, strict=True)])
    frequency = np.array([params[row].frequency_penalty for row, _ in rows], np.float32)
    presence = np.array([params[row].presence_penalty for row, _ in rows], np.float32)
    less = torch.from_numpy(counts) * _per_place(frequency, ids) + _per_place(presence, ids)
    places = _places(logits, [row for row, _ in rows], ids)
    _put(logits, places, logits.view(-1).index_select(0, places) - less.to(logits.device))


def _per_place(values: NDArray[np.float32], ids: Sequence[NDArray[np.int64]]) -> Tensor:
    """Each row's value, for each of its tokens."""
    return torch.from_numpy(np.repeat(values, [len(each) for each in ids]))


def _put(logits: Tensor, places: Tensor, values: Tensor) -> None:
    logits.view(-1).scatter_(0, places, values.clamp_(-LOGIT_MAX, LOGIT_MAX))


def _places(logits: Tensor, rows: list[int], ids: Sequence[NDArray[np.int64]]) -> Tensor:
    """The indices of the tokens `ids[i]` of row `rows[i]` in the flattened logits."""
    vocab_size = logits.shape[1]
    tokens = np.concatenate(ids)
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < vocab_size:
        raise IndexError(f"token ids outside 0 to {vocab_size - 1}")
    starts = np.repeat(np.array(rows, np.int64) * vocab_size, [len(each) for each in ids])
    return torch.from_numpy(tokens + starts).to(logits.device)
