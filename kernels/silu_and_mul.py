"""The gated activation of a SwiGLU feed-forward (Shazeer, arXiv 2002.05202).

    y = gate / (1 + exp(-gate)) * up

    row 0: | gate ........ | up ........ |   a program takes 1024 of the gates and the same 1024 of the ups
    row 1: | ...

Moves 3 numbers an element of y; about 5 FLOPs, so it is bound by memory: 256 rows of 14336 in bfloat16 are 22 MB,
5.1 us at 4.3 TB/s.

Owns the Triton kernel and its launcher; the gate and up projections lie next to each other in each row.
Invariant: computed in float32, rounded once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that
from kernels.launch import Launch
from kernels.on_device import on_device

_BLOCK = 1024


@triton.jit
def _silu_and_mul_kernel(
    y_ptr: tl.tensor,  # [tokens, intermediate]
    gate_up_ptr: tl.tensor,  # [tokens, 2 * intermediate]
    gate_up_stride: tl.tensor,
    INTERMEDIATE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < INTERMEDIATE
    gate_row = gate_up_ptr + row * gate_up_stride
    gate = tl.load(gate_row + columns, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(gate_row + INTERMEDIATE + columns, mask=mask, other=0.0).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + row * INTERMEDIATE + columns, y, mask=mask)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """See `Ops.silu_and_mul`. Rows may lie apart; the last dimension is contiguous."""
    expect("gate_up", gate_up, (None, None), FLOAT_TYPES, gate_up.device, strided=True)
    tokens, width = gate_up.shape
    expect_that("gate_up", width % 2 == 0, "as many gates as ups")
    intermediate = width // 2
    y = gate_up.new_empty((tokens, intermediate))
    if tokens == 0:
        return y
    block = min(_BLOCK, triton.next_power_of_2(intermediate))
    on_device(gate_up.device, _silu_and_mul_kernel, (tokens, triton.cdiv(intermediate, block)))(
        y, gate_up, gate_up.stride(0), INTERMEDIATE=intermediate, BLOCK=block, enable_fp_fusion=True
    )
    return y


def launches(_architecture: str) -> list[Launch]:
    return [
        Launch(
            f"activation, {intermediate} wide, {str(dtype).removeprefix('torch.')}",
            lambda intermediate=intermediate, dtype=dtype: silu_and_mul(torch.zeros(2, 2 * intermediate, dtype=dtype)),
            checked=(intermediate, dtype) == (14336, torch.bfloat16),
        )
        for intermediate in (1536, 14336)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ]
