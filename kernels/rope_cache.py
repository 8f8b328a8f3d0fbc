"""Rotary position embedding of q and k, and the write of k and v to the KV pool, in one pass.

Source: Su et al., arXiv 2104.09864, in the form that pairs element `d` with `d + head_dim / 2`.

Owns the Triton kernel (one program a token, all its heads) and its launcher. Knows slots, not sequences or blocks.
Invariant: a token whose slot is -1 leaves the pool untouched; no other slot than the token's own is ever written.
"""

from typing import Any, cast

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rope_and_cache_kernel(
    q_ptr: tl.tensor,  # [tokens, heads, head_dim] rotated in place
    k_ptr: tl.tensor,  # [tokens, kv_heads, head_dim]
    v_ptr: tl.tensor,  # [tokens, kv_heads, head_dim]
    cos_ptr: tl.tensor,  # [context_length, head_dim / 2]
    sin_ptr: tl.tensor,  # [context_length, head_dim / 2]
    positions_ptr: tl.tensor,  # [tokens]
    k_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    v_cache_ptr: tl.tensor,  # [blocks, block_size, kv_heads, head_dim]
    slots_ptr: tl.tensor,  # [tokens]
    q_token_stride: tl.tensor,
    q_head_stride: tl.tensor,
    k_token_stride: tl.tensor,
    k_head_stride: tl.tensor,
    v_token_stride: tl.tensor,
    v_head_stride: tl.tensor,
    cache_block_stride: tl.tensor,
    cache_slot_stride: tl.tensor,
    cache_head_stride: tl.tensor,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS_PADDED: tl.constexpr,
    KV_HEADS_PADDED: tl.constexpr,
    HALF_PADDED: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF_PADDED)[None, :]
    angle = tl.load(positions_ptr + token).to(tl.int64) * HALF + d
    cos = tl.load(cos_ptr + angle, mask=d < HALF, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=d < HALF, other=0.0)

    heads = tl.arange(0, HEADS_PADDED)[:, None]
    q_mask = (heads < HEADS) & (d < HALF)
    q_low = q_ptr + token * q_token_stride + heads * q_head_stride + d
    low, high = _rotate(q_low, q_mask, cos, sin, HALF)  # pyright: ignore[reportGeneralTypeIssues] (Triton's call)
    tl.store(q_low, low, mask=q_mask)
    tl.store(q_low + HALF, high, mask=q_mask)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    kv_heads = tl.arange(0, KV_HEADS_PADDED)[:, None]
    kv_mask = (kv_heads < KV_HEADS) & (d < HALF)
    place = (slot // BLOCK_SIZE) * cache_block_stride + (slot % BLOCK_SIZE) * cache_slot_stride
    target = place + kv_heads * cache_head_stride + d
    low, high = _rotate(k_ptr + token * k_token_stride + kv_heads * k_head_stride + d, kv_mask, cos, sin, HALF)
    tl.store(k_cache_ptr + target, low, mask=kv_mask)
    tl.store(k_cache_ptr + target + HALF, high, mask=kv_mask)
    v_low = v_ptr + token * v_token_stride + kv_heads * v_head_stride + d
    tl.store(v_cache_ptr + target, tl.load(v_low, mask=kv_mask), mask=kv_mask)
    tl.store(v_cache_ptr + target + HALF, tl.load(v_low + HALF, mask=kv_mask), mask=kv_mask)


@triton.jit
def _rotate(
    low_ptr: tl.tensor, mask: tl.tensor, cos: tl.tensor, sin: tl.tensor, HALF: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    low = tl.load(low_ptr, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(low_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


def rope_and_cache(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
) -> Tensor:
    """See `Ops.rope_and_cache`. q is rotated in place and returned; k and v are left as they are."""
    tokens, heads, head_dim = q.shape
    block_size, kv_heads = k_cache.shape[1:3]
    half = head_dim // 2
    assert k.shape == v.shape == (tokens, kv_heads, head_dim)
    assert k_cache.shape == v_cache.shape
    assert k_cache.stride() == v_cache.stride()
    assert k_cache.dtype == v_cache.dtype
    assert q.stride(2) == k.stride(2) == v.stride(2) == k_cache.stride(3) == 1
    assert cos.shape[1] == sin.shape[1] == half
    assert cos.is_contiguous()
    assert sin.is_contiguous()
    assert positions.shape == slots.shape == (tokens,)
    if tokens == 0:
        return q
    cast("Any", _rope_and_cache_kernel)[(tokens,)](
        q,
        k,
        v,
        cos,
        sin,
        positions,
        k_cache,
        v_cache,
        slots,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=half,
        BLOCK_SIZE=block_size,
        HEADS_PADDED=triton.next_power_of_2(heads),
        KV_HEADS_PADDED=triton.next_power_of_2(kv_heads),
        HALF_PADDED=triton.next_power_of_2(half),
        enable_fp_fusion=True,
    )
    return q
