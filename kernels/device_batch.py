"""The batch of a step, prepared on the device: positions, slots, lengths and block tables.

    patch_rows(rows, patches)                       what the host decided: new blocks, new sequences      host -> device
    prepare_batch(rows, batch, out, block_size)     ids, positions, slots, context_lens, block_tables     nothing
    ... the forward pass and draw_tokens ...
    commit_batch(rows, batch, drawn ids)            each row's length and last token                      nothing

`SequenceRows` keeps every running sequence, by the row of its block table. So for a decode step the host only says
which rows are in it and, every block_size tokens, sends one patch a row; the tokens drawn in the step before are read
where they were written, and the host may fetch them later. All three may be captured in a graph: they read persistent
buffers, launch by shapes alone and never wait.

A padded sequence is row -1: its token has slot -1, position 0 and id 0, and its context is 0, so it writes and reads
nothing.

Moves 28 bytes a token and 8 bytes a block of context: 256 sequences of 8k tokens in blocks of 16 are 1 MB, 0.3 us at
4.3 TB/s, so a step pays the launches. No floating point. One program a sequence, which strides over its tokens and its
table:

    sequence s: | tokens query_start[s] ..          | block table, 0 past the context |
    one more:   | tokens past the last sequence, slot -1 |

Owns the buffers' types, three kernels and their launchers. Knows no request, no scheduler and no KV pool.
Invariant: what is prepared for a sequence follows from its own row; no row is named twice in a batch.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import expect, expect_that
from kernels.launch import Launch
from kernels.on_device import on_device

COMPUTED = -1  # the column of a patch that sets the computed length instead of a block

_BLOCK = 256
_WARPS = 4
_COMPUTED = tl.constexpr(COMPUTED)


@dataclass(slots=True, frozen=True)
class SequenceRows:
    """Every running sequence, by the row of its block table. Made once; changed by patches and commits alone."""

    computed: Tensor  # [rows] int32 tokens in the KV pool
    last_ids: Tensor  # [rows] int64 the token after those, if it is known
    block_tables: Tensor  # [rows, blocks_max] int32

    @classmethod
    def of(cls, rows: int, blocks_max: int, device: torch.device) -> "SequenceRows":
        return cls(
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.int64, device=device),
            torch.zeros(rows, blocks_max, dtype=torch.int32, device=device),
        )


@dataclass(slots=True, frozen=True)
class BatchRows:
    """Which sequences are in a step, and how many tokens of each, as the host says."""

    rows: Tensor  # [sequences] int32, -1 for a padded one
    query_start: Tensor  # [sequences + 1] int32, from 0; a padded sequence has one token, or none
    given_ids: Tensor  # [tokens] int64; -1: the row's last token


@dataclass(slots=True, frozen=True)
class PreparedBatch:
    """What the forward pass reads; `prepare_batch` writes all of it."""

    ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    slots: Tensor  # [tokens] int64, -1 for none
    context_lens: Tensor  # [sequences] int32
    block_tables: Tensor  # [sequences, blocks_max] int32, 0 past the context

    @classmethod
    def of(cls, tokens: int, sequences: int, blocks_max: int, device: torch.device) -> "PreparedBatch":
        """Uninitialised buffers of these sizes."""
        ids, positions, slots = (torch.empty(tokens, dtype=torch.int64, device=device) for _ in range(3))
        lens = torch.empty(sequences, dtype=torch.int32, device=device)
        return cls(ids, positions, slots, lens, torch.empty(sequences, blocks_max, dtype=torch.int32, device=device))


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["patches_ptr"])
def _patch_kernel(
    computed_ptr: tl.tensor,  # [rows]
    tables_ptr: tl.tensor,  # [rows, blocks_max]
    patches_ptr: tl.tensor,  # [count, 3]
    table_stride: tl.tensor,
    count: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(patches_ptr + at * 3, mask=at < count, other=-1).to(tl.int64)
    column = tl.load(patches_ptr + at * 3 + 1, mask=at < count, other=0)
    value = tl.load(patches_ptr + at * 3 + 2, mask=at < count, other=0)
    tl.store(computed_ptr + row, value, mask=(row >= 0) & (column == _COMPUTED))
    tl.store(tables_ptr + row * table_stride + column, value, mask=(row >= 0) & (column >= 0))


_VARYING = ["sequences", "tokens"]
_ANYWHERE = ["rows_ptr", "query_start_ptr", "given_ids_ptr", "drawn_ptr", "sample_of_ptr"]


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_ANYWHERE[:3])
def _prepare_kernel(
    ids_ptr: tl.tensor,  # [tokens]
    positions_ptr: tl.tensor,  # [tokens]
    slots_ptr: tl.tensor,  # [tokens]
    context_lens_ptr: tl.tensor,  # [sequences]
    out_tables_ptr: tl.tensor,  # [sequences, BLOCKS_MAX]
    rows_ptr: tl.tensor,  # [sequences]
    query_start_ptr: tl.tensor,  # [sequences + 1]
    given_ids_ptr: tl.tensor,  # [tokens]
    computed_ptr: tl.tensor,  # [rows]
    last_ids_ptr: tl.tensor,  # [rows]
    tables_ptr: tl.tensor,  # [rows, BLOCKS_MAX or more]
    out_table_stride: tl.tensor,
    table_stride: tl.tensor,
    sequences: tl.tensor,
    tokens: tl.tensor,
    BLOCKS_MAX: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    sequence = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    start = tl.load(query_start_ptr + sequence)
    row = tl.load(rows_ptr + sequence, mask=sequence < sequences, other=-1).to(tl.int64)
    end = tl.load(query_start_ptr + sequence + 1, mask=sequence < sequences, other=0)
    end = tl.where(sequence < sequences, end, tokens)
    there = row >= 0
    computed = tl.load(computed_ptr + row, mask=there, other=0)
    last_id = tl.load(last_ids_ptr + row, mask=there, other=0)
    table_row = tables_ptr + row * table_stride
    for first in range(start, end, BLOCK):
        token = first + columns
        inside = token < end
        position = tl.where(there, computed + token - start, 0)
        # A block's number times its size passes 2^31 in a large pool.
        block = tl.load(table_row + position // BLOCK_SIZE, mask=inside & there, other=0).to(tl.int64)
        given = tl.load(given_ids_ptr + token, mask=inside & there, other=-1)
        tl.store(ids_ptr + token, tl.where(given < 0, last_id, given), mask=inside)
        tl.store(positions_ptr + token, position.to(tl.int64), mask=inside)
        tl.store(slots_ptr + token, tl.where(there, block * BLOCK_SIZE + position % BLOCK_SIZE, -1), mask=inside)
    if sequence < sequences:
        context = tl.where(there, computed + end - start, 0)
        tl.store(context_lens_ptr + sequence, context)
        used = (context + BLOCK_SIZE - 1) // BLOCK_SIZE
        for first in range(0, BLOCKS_MAX, BLOCK):
            column = first + columns
            blocks = tl.load(table_row + column, mask=(column < used) & there, other=0)
            tl.store(out_tables_ptr + sequence * out_table_stride + column, blocks, mask=column < BLOCKS_MAX)


@triton.jit(do_not_specialize=_VARYING[:1], do_not_specialize_on_alignment=[*_ANYWHERE[:2], *_ANYWHERE[3:]])
def _commit_kernel(
    computed_ptr: tl.tensor,  # [rows]
    last_ids_ptr: tl.tensor,  # [rows]
    rows_ptr: tl.tensor,  # [sequences]
    query_start_ptr: tl.tensor,  # [sequences + 1]
    drawn_ptr: tl.tensor,  # [samples]
    sample_of_ptr: tl.tensor,  # [sequences]
    sequences: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    sequence = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows_ptr + sequence, mask=sequence < sequences, other=-1).to(tl.int64)
    there = row >= 0
    start = tl.load(query_start_ptr + sequence, mask=there, other=0)
    end = tl.load(query_start_ptr + sequence + 1, mask=there, other=0)
    computed = tl.load(computed_ptr + row, mask=there, other=0)
    tl.store(computed_ptr + row, computed + end - start, mask=there)
    sample = tl.load(sample_of_ptr + sequence, mask=there, other=-1)
    drawn = tl.load(drawn_ptr + sample, mask=sample >= 0, other=0)
    tl.store(last_ids_ptr + row, drawn, mask=sample >= 0)


def patch_rows(rows: SequenceRows, patches: Tensor) -> None:
    """patches: [count, 3] int32 of (row, column, value), none of a place twice; a row of -1 is skipped.

    Column c >= 0 is place c of the row's block table. A row that gets another sequence needs its blocks and COMPUTED.
    """
    _check_rows(rows)
    expect("patches", patches, (None, 3), torch.int32, rows.computed.device)
    count = len(patches)
    if count == 0:
        return
    on_device(rows.computed.device, _patch_kernel, (triton.cdiv(count, _BLOCK),))(
        *(rows.computed, rows.block_tables, patches, rows.block_tables.stride(0), count),
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )


def prepare_batch(rows: SequenceRows, batch: BatchRows, out: PreparedBatch, *, block_size: int) -> None:
    """Fills `out`. Tokens past the last sequence get slot -1. The blocks that the new tokens need are in the tables."""
    _check(rows, batch)
    sequences, tokens, device = len(batch.rows), len(batch.given_ids), rows.computed.device
    for name in ("ids", "positions", "slots"):
        expect(f"out.{name}", getattr(out, name), (tokens,), torch.int64, device)
    expect("out.context_lens", out.context_lens, (sequences,), torch.int32, device)
    expect("out.block_tables", out.block_tables, (sequences, None), torch.int32, device, strided=True)
    blocks_max = rows.block_tables.shape[1]
    expect_that("out.block_tables", out.block_tables.shape[1] <= blocks_max, f"at most {blocks_max} blocks a sequence")
    expect_that("block_size", block_size > 0, "a number above 0")
    if sequences == tokens == 0:
        return
    on_device(rows.computed.device, _prepare_kernel, (sequences + 1,))(
        *(out.ids, out.positions, out.slots, out.context_lens, out.block_tables),
        *(batch.rows, batch.query_start, batch.given_ids),
        *(rows.computed, rows.last_ids, rows.block_tables),
        *(out.block_tables.stride(0), rows.block_tables.stride(0), sequences, tokens),
        BLOCKS_MAX=out.block_tables.shape[1],
        BLOCK_SIZE=block_size,
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )


def commit_batch(rows: SequenceRows, batch: BatchRows, drawn: Tensor, sample_of: Tensor) -> None:
    """Record that a step's tokens are in the pool, and the drawn tokens as the next inputs.

    drawn: [samples] int64, from `draw_tokens`; sample_of: [sequences] int32, the sample of each sequence, or -1 for a
    chunk that ends before its prompt does.
    """
    _check(rows, batch)
    sequences = len(batch.rows)
    expect("drawn", drawn, (None,), torch.int64, rows.computed.device)
    expect("sample_of", sample_of, (sequences,), torch.int32, rows.computed.device)
    if sequences == 0:
        return
    on_device(rows.computed.device, _commit_kernel, (triton.cdiv(sequences, _BLOCK),))(
        *(rows.computed, rows.last_ids, batch.rows, batch.query_start, drawn, sample_of, sequences),
        BLOCK=_BLOCK,
        num_warps=_WARPS,
    )


def _check(rows: SequenceRows, batch: BatchRows) -> None:
    _check_rows(rows)
    device = rows.computed.device
    expect("rows", batch.rows, (None,), torch.int32, device)
    expect("query_start", batch.query_start, (len(batch.rows) + 1,), torch.int32, device)
    expect("given_ids", batch.given_ids, (None,), torch.int64, device)


def _check_rows(rows: SequenceRows) -> None:
    device = rows.computed.device
    expect("computed", rows.computed, (None,), torch.int32, device)
    expect("last_ids", rows.last_ids, rows.computed.shape, torch.int64, device)
    expect("block_tables", rows.block_tables, (len(rows.computed), None), torch.int32, device, strided=True)


def launches(_architecture: str) -> list[Launch]:
    def run() -> None:
        sequences, tokens, blocks_max, device = 3, 5, 512, torch.device("cpu")
        rows = SequenceRows.of(4, blocks_max, device)
        whole = torch.zeros(sequences + 1, dtype=torch.int32)
        batch = BatchRows(whole[1:], whole, torch.zeros(tokens, dtype=torch.int64))
        patch_rows(rows, torch.zeros(2, 3, dtype=torch.int32))
        out = PreparedBatch.of(tokens, sequences, blocks_max, device)
        prepare_batch(rows, batch, out, block_size=16)
        commit_batch(rows, batch, batch.given_ids, batch.rows)

    return [Launch("batch preparation", run, checked=True)]
