"""RMSNorm, alone and fused with the addition of the residual (Zhang & Sennrich, arXiv 1910.07467).

    y = x / sqrt(mean(x^2) + eps) * weight

    row 0: | x and residual, read once -> registers: sum, mean square, product -> both written | one program
    row 1: | ...

Owns two Triton kernels, one program a row, and their launchers. Knows nothing of where in a decoder a norm stands.
Moves 2 numbers an element alone, 4 with the residual, and the weight, which stays in the L2 cache; about 4 and 5 FLOPs
an element, so both are bound by memory: 256 rows of 4096 in bfloat16 are 4.2 and 8.4 MB, 1.0 and 2.0 us at 4.3 TB/s.

Invariant: a row is read once, squared and summed in float32, and rounded once on the way out, whatever the other rows.
"""

from typing import cast

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.part import part

HIDDEN_MAX = 16384  # a row stays in the registers of one program


@part
def _normalise(
    x: tl.tensor, weight_ptr: tl.tensor, columns: tl.tensor, mask: tl.tensor, eps: tl.tensor, HIDDEN: tl.constexpr
) -> tl.tensor:
    rms_inverse = tl.rsqrt(tl.sum(x * x, axis=0) / HIDDEN + eps)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0).to(tl.float32)
    return x * rms_inverse * weight


@triton.jit
def _rms_norm_kernel(
    y_ptr: tl.tensor,  # [tokens, hidden]
    x_ptr: tl.tensor,  # [tokens, hidden]
    weight_ptr: tl.tensor,  # [hidden]
    y_stride: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0).to(tl.float32)
    y = _normalise(x, weight_ptr, columns, mask, eps, HIDDEN)
    tl.store(y_ptr + row * y_stride + columns, y, mask=mask)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr: tl.tensor,  # [tokens, hidden] becomes the norm of the sum
    residual_ptr: tl.tensor,  # [tokens, hidden] becomes the sum
    weight_ptr: tl.tensor,  # [hidden]
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < HIDDEN
    x_row = x_ptr + row * x_stride + columns
    residual_row = residual_ptr + row * residual_stride + columns
    x = tl.load(x_row, mask=mask, other=0.0)
    residual = tl.load(residual_row, mask=mask, other=0.0)
    # The norm is taken of the rounded sum, the very value that the next layer adds to.
    total = (x.to(tl.float32) + residual.to(tl.float32)).to(residual.dtype)
    y = _normalise(total.to(tl.float32), weight_ptr, columns, mask, eps, HIDDEN)
    tl.store(residual_row, total, mask=mask)
    tl.store(x_row, y, mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """See `Ops.rms_norm`. Rows may lie apart; the last dimension is contiguous."""
    _check(x, weight)
    tokens, hidden = x.shape
    y = x.new_empty(x.shape)
    if tokens == 0:
        return y
    block = cast("int", triton.next_power_of_2(hidden))
    on_device(x.device, _rms_norm_kernel, (tokens,))(
        y,
        x,
        weight,
        y.stride(0),
        x.stride(0),
        eps,
        HIDDEN=hidden,
        BLOCK=block,
        num_warps=_warps(block),
        enable_fp_fusion=True,
    )
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `Ops.add_rms_norm`. Both inputs are overwritten, and returned."""
    _check(x, weight)
    tokens, hidden = x.shape
    expect("residual", residual, x.shape, x.dtype, x.device, strided=True)
    if tokens == 0:
        return x, residual
    apart = x is not residual and (x.data_ptr() != residual.data_ptr() or x.is_meta)  # which has no addresses
    expect_that("residual", apart, "other memory than x: both are overwritten")
    for name, rows in (("x", x), ("residual", residual)):
        expect_that(name, tokens == 1 or rows.stride(0) >= hidden, "rows that do not overlap: each is overwritten")
    block = cast("int", triton.next_power_of_2(hidden))
    on_device(x.device, _add_rms_norm_kernel, (tokens,))(
        x,
        residual,
        weight,
        x.stride(0),
        residual.stride(0),
        eps,
        HIDDEN=hidden,
        BLOCK=block,
        num_warps=_warps(block),
        enable_fp_fusion=True,
    )
    return x, residual


def _check(x: Tensor, weight: Tensor) -> None:
    expect("x", x, (None, None), FLOAT_TYPES, x.device, strided=True)
    expect_that("x", x.shape[1] <= HIDDEN_MAX, f"rows of at most {HIDDEN_MAX}")
    expect("weight", weight, (x.shape[1],), FLOAT_TYPES, x.device)


def _warps(block: int) -> int:
    """Eight elements or more a thread: fewer leave threads idle in the reduction. 32 in 8 warps spill (sm_90)."""
    return 16 if block > 4096 else min(max(block // 256, 1), 8)


def launches(_architecture: str) -> list[Launch]:
    def run(hidden: int, dtype: torch.dtype) -> None:
        x, weight = torch.zeros(2, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
        rms_norm(x, weight, 1e-5)
        add_rms_norm(x, x.clone(), weight, 1e-5)

    return [
        Launch(
            f"norms, {hidden} wide, {str(dtype).removeprefix('torch.')}",
            lambda hidden=hidden, dtype=dtype: run(hidden, dtype),
            checked=(hidden, dtype) in {(4096, torch.bfloat16), (HIDDEN_MAX, torch.bfloat16)},
        )
        for hidden in (128, 576, 2048, 4096, 8192, HIDDEN_MAX)
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    ]
