"""The arguments of one call of paged attention, checked once, in the form that its kernels take.

Owns the checks of shapes, strides, types and devices, and which arguments are compile-time constants. Knows no grid.
Invariant: what is constant at compile time follows from the model and the pool, never from the batch.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that
from kernels.attention_table import HEAD_DIMS, KvType, Tile, tiles
from kernels.capability import capability, has_fp8
from kernels.kv_pool import expect_pool, form_of, raw


@dataclass(slots=True, frozen=True)
class AttentionCall:
    """See `Ops.paged_attention`. q, the caches and the rows of block_tables may be strided views."""

    out: Tensor  # [tokens, heads, head_dim]
    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    scale: float
    soft_cap: float | None
    window: int | None

    def __post_init__(self) -> None:
        q, k_cache, v_cache = self.q, self.k_cache, self.v_cache
        expect("q", q, (None, None, None), FLOAT_TYPES, q.device, strided=True)
        expect_that("q", q.shape[2] <= HEAD_DIMS[-1], f"heads of at most {HEAD_DIMS[-1]}")
        expect_pool(k_cache, v_cache, self.k_scale, self.v_scale, q, None)
        expect_that("q", q.shape[1] % k_cache.shape[2] == 0, "a multiple of the KV heads")
        expect("context_lens", self.context_lens, (None,), torch.int32, q.device)
        expect("query_start", self.query_start, (self.sequences + 1,), torch.int32, q.device)
        expect("block_tables", self.block_tables, (self.sequences, None), torch.int32, q.device, strided=True)
        expect_that("window", self.window is None or self.window > 0, "None, or a number above 0")
        expect_that("soft_cap", self.soft_cap is None or self.soft_cap > 0, "None, or a number above 0")

    @property
    def sequences(self) -> int:
        return self.context_lens.shape[0]

    @property
    def group(self) -> int:
        """Query heads per KV head."""
        return self.q.shape[1] // self.k_cache.shape[2]

    @property
    def head_dim_padded(self) -> int:
        """At least the smallest side that tl.dot accepts."""
        return max(16, cast("int", triton.next_power_of_2(self.q.shape[2])))

    def tiles(self) -> tuple[Tile, Tile]:
        """The tiles of decodes and of chunks, for this device, model and pool."""
        form = form_of(self.k_cache)
        own: KvType = "fp32" if self.q.dtype == torch.float32 else "16-bit"
        return tiles(capability(self.q.device), self.q.shape[2], own if form == "model" or own == "fp32" else form)

    def tensors(self) -> tuple[Tensor | None, ...]:
        return (
            self.q,
            raw(self.k_cache),
            raw(self.v_cache),
            self.k_scale,
            self.v_scale,
            self.block_tables,
            self.query_start,
            self.context_lens,
        )

    def numbers(self) -> tuple[int | float, ...]:
        """Scores are in units of log2."""
        return (
            self.scale * math.log2(math.e),
            (self.soft_cap or 0.0) * math.log2(math.e),
            self.window or 0,
            self.block_tables.stride(0),
            *self.q.stride()[:2],
            *self.out.stride()[:2],
            *self.k_cache.stride()[:3],
        )

    def constants(self, tile: Tile) -> dict[str, Any]:
        """Compile-time constants and options of both kernels."""
        block_size, kv_heads, head_dim = self.k_cache.shape[1:]
        return {
            "GROUP": self.group,
            "KV_HEADS": kv_heads,
            "HEAD_DIM": head_dim,
            "HEAD_DIM_PADDED": self.head_dim_padded,
            "BLOCK_SIZE": block_size,
            "ROWS": self.rows(tile),
            "KEYS": tile.keys,
            "WINDOWED": self.window is not None,
            "CAPPED": self.soft_cap is not None,
            "KV": form_of(self.k_cache),
            "NATIVE_FP8": has_fp8(self.q.device),
            "num_warps": tile.warps,
            "num_stages": tile.stages,
            "enable_fp_fusion": True,
        }

    def rows(self, tile: Tile) -> int:
        """Rows of a tile: at least the query heads that share one KV head."""
        return max(tile.rows, cast("int", triton.next_power_of_2(self.group)))
