"""Inputs for kernels: pools with scattered blocks, and batches of sequences, all from one seed.

Knows shapes, not kernels. Invariant: slots that no sequence has written are NaN, so that reading one shows.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    lengths: tuple[tuple[int, int], ...]  # of each sequence: its new tokens, and all of them
    window: int | None = None
    soft_cap: float | None = None
    kv: torch.dtype | None = None  # of a quantized pool: int8 or float8_e4m3fn


@dataclass
class AttentionInputs:
    """`heads` [tokens, heads, head_dim] and a pool whose blocks are dealt out at random."""

    shape: AttentionShape
    dtype: torch.dtype
    device: torch.device
    q: Tensor = field(init=False)
    k_cache: Tensor = field(init=False)
    v_cache: Tensor = field(init=False)
    block_tables: Tensor = field(init=False)
    query_start: Tensor = field(init=False)
    context_lens: Tensor = field(init=False)
    scale: Tensor | None = field(init=False)  # [blocks, block_size, kv_heads] of both K and V, of a quantized pool

    def __post_init__(self) -> None:
        shape, device = self.shape, self.device
        generator = torch.Generator(device).manual_seed(1)
        counts = [-(-length // shape.block_size) for _, length in shape.lengths]
        order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(2)) + 1
        tables = torch.zeros(len(counts), max(*counts, 1), dtype=torch.int32)
        pool = (sum(counts) + 1, shape.block_size, shape.kv_heads, shape.head_dim)
        loud = 1 if shape.kv is None else 40  # larger, since the numbers become codes
        self.k_cache, self.v_cache = (
            (torch.randn(pool, generator=generator, device=device) * loud).clamp(-127, 127).to(shape.kv or self.dtype)
            for _ in range(2)
        )
        self.scale = None if shape.kv is None else torch.rand(pool[:3], generator=generator, device=device) / loud
        for row, (blocks, (_, length)) in enumerate(zip(order.split(counts), shape.lengths, strict=True)):
            tables[row, : len(blocks)] = blocks
            used = length % shape.block_size
            for cache in (self.k_cache, self.v_cache) if self.scale is None else (self.scale,):
                if used:
                    cache[int(blocks[-1]), used:] = torch.nan
        self.block_tables = tables.to(device)
        queries = [new for new, _ in shape.lengths]
        starts = torch.tensor([0, *queries]).cumsum(0)
        self.query_start = starts.to(device, torch.int32)
        self.context_lens = torch.tensor([length for _, length in shape.lengths], dtype=torch.int32, device=device)
        rows = (int(starts[-1]), shape.heads, shape.head_dim)
        self.q = torch.randn(rows, generator=generator, device=device).to(self.dtype)

    @property
    def pool_bytes_read(self) -> int:
        """By a decode step: K and V of every token once."""
        shape = self.shape
        tokens = sum(length for _, length in shape.lengths)
        scales = 0 if self.scale is None else 2 * tokens * shape.kv_heads * 4
        return 2 * tokens * shape.kv_heads * shape.head_dim * self.k_cache.itemsize + scales
