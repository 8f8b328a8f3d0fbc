"""Edits of single logits before a token is drawn: bias, penalties, banned tokens, in this order and in place.

    logit += bias
    logit = logit / repetition if logit > 0 else logit * repetition      of every token seen, in prompt or output
    logit -= frequency * count + presence * (count > 0)                  count: times in the output
    logit = BANNED

Owns the kernel (one program a row) and its launcher. Knows no request.
Moves 8 bytes of logits and 8 of list an entry, scattered; 1 to 6 FLOPs an entry. The vocabulary is never read whole,
so it takes a few microseconds: as long as a launch, whatever the bandwidth.

Invariant: a row's entries change that row alone; an id outside the vocabulary changes nothing and is reported.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import expect
from kernels.on_device import on_device
from kernels.part import part
from kernels.sampling import BANNED, LOGIT_MAX, NOT_FINITE, OUTSIDE, PENALTY_MIN, LogitEdits, TokenLists

_LOGIT_MAX = tl.constexpr(LOGIT_MAX)
_PENALTY_MIN = tl.constexpr(PENALTY_MIN)
_BANNED = tl.constexpr(BANNED)
_NOT_FINITE = tl.constexpr(NOT_FINITE)
_OUTSIDE = tl.constexpr(OUTSIDE)
_BLOCK = 512
_WARPS = 4


@part
def _load_entries(
    row_ptr: tl.tensor, ids_ptr: tl.tensor, entries: tl.tensor, end: tl.tensor, vocab: tl.tensor, fault: tl.tensor
) -> Any:
    """Where the tokens of these entries are, which of them are in the vocabulary, their logits, and the row's fault."""
    named = entries < end
    ids = tl.load(ids_ptr + entries, mask=named, other=0).to(tl.int64)
    inside = named & (ids >= 0) & (ids < vocab)
    logits = tl.load(row_ptr + ids, mask=inside, other=0.0)
    broken = tl.where(tl.abs(logits) < float("inf"), 0, _NOT_FINITE)
    fault = tl.maximum(fault, tl.max(tl.where(named & ~inside, _OUTSIDE, broken), axis=0))
    return row_ptr + ids, inside, logits, fault


# Slices of one buffer may start anywhere: specialised on where, a kernel would compile anew, seconds in the middle of
# serving.
@triton.jit(
    do_not_specialize_on_alignment=[
        "bias_starts_ptr",
        "bias_ids_ptr",
        "bias_values_ptr",
        "seen_starts_ptr",
        "seen_ids_ptr",
        "seen_counts_ptr",
        "banned_starts_ptr",
        "banned_ids_ptr",
        "repetition_ptr",
        "presence_ptr",
        "frequency_ptr",
    ]
)
def _edit_kernel(
    logits_ptr: tl.tensor,  # [rows, vocab]
    faults_ptr: tl.tensor,  # [rows]
    bias_starts_ptr: tl.tensor,  # [rows + 1]
    bias_ids_ptr: tl.tensor,  # [entries]
    bias_values_ptr: tl.tensor,  # [entries]
    seen_starts_ptr: tl.tensor,  # [rows + 1]
    seen_ids_ptr: tl.tensor,  # [entries]
    seen_counts_ptr: tl.tensor,  # [entries]
    banned_starts_ptr: tl.tensor,  # [rows + 1]
    banned_ids_ptr: tl.tensor,  # [entries]
    repetition_ptr: tl.tensor,  # [rows]
    presence_ptr: tl.tensor,  # [rows]
    frequency_ptr: tl.tensor,  # [rows]
    row_stride: tl.tensor,
    vocab: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    columns = tl.arange(0, BLOCK)
    fault = 0
    end = tl.load(bias_starts_ptr + row + 1)
    for start in range(tl.load(bias_starts_ptr + row), end, BLOCK):
        places, inside, logits, fault = _load_entries(row_ptr, bias_ids_ptr, start + columns, end, vocab, fault)
        added = tl.load(bias_values_ptr + start + columns, mask=inside, other=0.0)
        tl.store(places, logits + added, mask=inside)
    tl.debug_barrier()  # another thread may have the same token of the next list
    repetition = tl.maximum(tl.load(repetition_ptr + row), _PENALTY_MIN)
    presence = tl.load(presence_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    end = tl.load(seen_starts_ptr + row + 1)
    for start in range(tl.load(seen_starts_ptr + row), end, BLOCK):
        places, inside, logits, fault = _load_entries(row_ptr, seen_ids_ptr, start + columns, end, vocab, fault)
        counts = tl.load(seen_counts_ptr + start + columns, mask=inside, other=0.0)
        logits = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
        logits -= counts * frequency + tl.where(counts > 0, presence, 0.0)
        tl.store(places, tl.minimum(tl.maximum(logits, -_LOGIT_MAX), _LOGIT_MAX), mask=inside)
    tl.debug_barrier()
    end = tl.load(banned_starts_ptr + row + 1)
    for start in range(tl.load(banned_starts_ptr + row), end, BLOCK):
        places, inside, logits, fault = _load_entries(row_ptr, banned_ids_ptr, start + columns, end, vocab, fault)
        tl.store(places, tl.full([BLOCK], _BANNED, tl.float32), mask=inside)
    tl.store(faults_ptr + row, fault)


def edit_logits(logits: Tensor, edits: LogitEdits) -> Tensor:
    """logits: [rows, vocab] float32, changed in place; rows may lie apart. Returns faults, [rows] int32: 0, NOT_FINITE
    (of the tokens named, before they were changed) or OUTSIDE.
    """
    # A bias may be less than a narrower type resolves.
    expect("logits", logits, (None, None), torch.float32, logits.device, strided=True)
    rows, vocab = logits.shape
    for name in ("bias", "seen", "banned"):
        lists: TokenLists = getattr(edits, name)
        expect(f"{name}.starts", lists.starts, (rows + 1,), torch.int32, logits.device)
        expect(f"{name}.ids", lists.ids, (None,), torch.int32, logits.device)
        expect(f"{name}.values", lists.values, lists.ids.shape, torch.float32, logits.device)
    for name in ("repetition", "presence", "frequency"):
        expect(name, getattr(edits, name), (rows,), torch.float32, logits.device)
    faults = torch.empty(rows, dtype=torch.int32, device=logits.device)
    if rows == 0:
        return faults
    on_device(logits.device, _edit_kernel, (rows,))(
        logits,
        faults,
        *(edits.bias.starts, edits.bias.ids, edits.bias.values),
        *(edits.seen.starts, edits.seen.ids, edits.seen.values),
        *(edits.banned.starts, edits.banned.ids),
        *(edits.repetition, edits.presence, edits.frequency),
        logits.stride(0),
        vocab,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
        enable_fp_fusion=False,  # a penalty is rounded as on a CPU
    )
    return faults
