"""The rotation of q and k and the write to the pool: cases for the check of accuracy.

q and the whole pool are compared as numbers, so that a token without a slot that writes something shows. Invariant: q,
k and v are views of one projection, as in a model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from bench.gpu.machine import Machine
from bench.gpu.part import Case
from kernels.reference import ReferenceOps
from kernels.triton_ops import TritonOps

BLOCK_SIZE = 16
EPS = 1e-6


@dataclass(frozen=True, kw_only=True)
class Turn:
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int
    normed: bool = False  # Qwen3's norm of each head
    pool: torch.dtype | None = None  # of a quantized one

    @property
    def name(self) -> str:
        name = f"{self.tokens} tokens, head_dim {self.head_dim}, {self.heads}/{self.kv_heads} heads"
        pool = "" if self.pool is None else f", {str(self.pool).removeprefix('torch.')} pool"
        return name + (", normed" if self.normed else "") + pool


def cases(machine: Machine, dtype: torch.dtype) -> Iterator[Case]:
    for turn in _turns(machine, dtype):
        yield Case("rope_and_cache", dtype, turn.name, lambda t=turn: _both(machine, dtype, t))


def _turns(machine: Machine, dtype: torch.dtype) -> Iterator[Turn]:
    """Every class of head dims, pool and norm in bfloat16; the other types at the commonest."""
    if machine.dry:
        yield Turn(tokens=5, heads=3, kv_heads=1, head_dim=24)
        yield Turn(tokens=4, heads=2, kv_heads=2, head_dim=16, normed=True, pool=torch.int8)
        return
    whole = dtype == torch.bfloat16
    heads = {64: (9, 3), 80: (5, 1), 96: (7, 1), 128: (32, 8), 256: (16, 2)}
    for head_dim in heads if whole else (64, 128):
        yield Turn(tokens=300, heads=heads[head_dim][0], kv_heads=heads[head_dim][1], head_dim=head_dim)
    for normed, pool in ((True, None), *product((False, True), (torch.int8, torch.float8_e4m3fn))) if whole else ():
        yield Turn(tokens=300, heads=32, kv_heads=8, head_dim=128, normed=normed, pool=pool)


def _both(machine: Machine, dtype: torch.dtype, turn: Turn) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(machine.device).manual_seed(4)
    width = turn.heads + 2 * turn.kv_heads
    qkv = torch.randn(turn.tokens, width, turn.head_dim, generator=generator, device=machine.device).to(dtype)
    norms = [torch.rand(turn.head_dim, generator=generator, device=machine.device).to(dtype) + 0.5 for _ in range(2)]
    angles = torch.rand(turn.tokens, turn.head_dim // 2, generator=generator, device=machine.device) * 6
    got = _turned(TritonOps(), qkv, norms, angles, turn)
    return got, _turned(ReferenceOps(), qkv.float(), [norm.float() for norm in norms], angles, turn)


def _turned(ops: ReferenceOps | TritonOps, qkv: Tensor, norms: list[Tensor], angles: Tensor, turn: Turn) -> Tensor:
    """q, and both halves of the pool as numbers, one after the other, in float32."""
    q, k, v = qkv.clone().split([turn.heads, turn.kv_heads, turn.kv_heads], 1)
    slots = torch.arange(turn.tokens, device=qkv.device)
    slots[::3] = -1
    shape = (turn.tokens // BLOCK_SIZE + 1, BLOCK_SIZE, turn.kv_heads, turn.head_dim)
    caches = [torch.zeros(shape, device=qkv.device).to(turn.pool or qkv.dtype) for _ in range(2)]
    scales = [None if turn.pool is None else torch.zeros(shape[:3], device=qkv.device) for _ in range(2)]
    q = ops.rope_and_cache(
        q,
        k,
        v,
        cos=angles.cos(),
        sin=angles.sin(),
        positions=torch.arange(turn.tokens, device=qkv.device),
        k_cache=caches[0],
        v_cache=caches[1],
        slots=slots,
        k_scale=scales[0],
        v_scale=scales[1],
        q_norm=norms[0] if turn.normed else None,
        k_norm=norms[1] if turn.normed else None,
        norm_eps=EPS,
    )
    pools = [
        (cache.float() if scale is None else cache.float() * scale.unsqueeze(-1)).flatten()
        for cache, scale in zip(caches, scales, strict=True)
    ]
    return torch.cat([q.float().flatten(), *pools])
