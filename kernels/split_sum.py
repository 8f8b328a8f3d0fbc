"""Adds up, in their order, the parts of a product whose inputs were split among programs.

    y[row, output] = sum over splits of parts[split, row, output]

The number of splits follows from the weight's shape alone, and the sum has one order, so a row's result does not depend
on how many rows there are. Moves 4 bytes a part and the result once: at most an eighth of a 4-bit weight's bytes for
the 16 rows of a small batch. One program for each stretch of a row.

Owns the kernel, its launcher, and how many splits a product has.
"""

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import expect
from kernels.on_device import on_device

PROGRAMS_ENOUGH = 256  # that fill the largest chip by themselves

_BLOCK = 1024
_WARPS = 4


def splits_of(outputs: int, inputs: int, *, block_outputs: int, split_inputs: int) -> int:
    """How many programs share the inputs of one block of outputs: each has `split_inputs` of them, or all."""
    if triton.cdiv(outputs, block_outputs) >= PROGRAMS_ENOUGH:
        return 1
    return cast("int", triton.cdiv(inputs, split_inputs))


@triton.jit(do_not_specialize=["rows"])
def _sum_kernel(
    y_ptr: tl.tensor,  # [rows, OUTPUTS]
    parts_ptr: tl.tensor,  # [SPLITS, rows, OUTPUTS]
    rows: tl.tensor,
    OUTPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for split in range(SPLITS):
        total += tl.load(parts_ptr + (split * rows + row) * OUTPUTS + columns, mask=columns < OUTPUTS, other=0.0)
    tl.store(y_ptr + row * OUTPUTS + columns, total, mask=columns < OUTPUTS)


def sum_splits(parts: Tensor, dtype: torch.dtype) -> Tensor:
    """parts: [splits, rows, outputs] float32. Returns [rows, outputs]."""
    expect("parts", parts, (None, None, None), torch.float32, parts.device)
    splits, rows, outputs = parts.shape
    if splits == 1 and dtype == torch.float32:
        return parts[0]
    y = torch.empty(rows, outputs, dtype=dtype, device=parts.device)
    block = min(_BLOCK, triton.next_power_of_2(outputs))
    on_device(parts.device, _sum_kernel, (rows, triton.cdiv(outputs, block)))(
        y, parts, rows, OUTPUTS=outputs, SPLITS=splits, BLOCK=block, num_warps=_WARPS
    )
    return y
