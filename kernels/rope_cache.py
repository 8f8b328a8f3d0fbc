"""Rotary position embedding of q and k, and the write of k and v to the KV pool, in one pass.

    q, k = rms_norm per head (Qwen3's, when weights are given);   q, k = rotate(q, k, position);   pool[slot] = k, v

Source: Su et al., arXiv 2104.09864, in the form that pairs element `d` with `d + head_dim / 2`.

Owns the Triton kernel (one program a token, all its heads) and its launcher. Knows slots, not sequences or blocks.
Invariant: a token whose slot is -1 leaves the pool untouched; no other slot than the token's own is ever written.

Roofline, of a token with H heads and G KV heads of D, b bytes a number: q is read and written, k and v are read, and
written with c bytes a number (1 when quantized, and 8 for both scales of a head): (2 H + 2 G) D b + 2 G D c + 8 G
bytes, and D cosines and sines of 4. About 10 FLOPs an element of q and k: far below any chip's balance; the memory
decides. Llama-3.1-8B, bfloat16: 25 KB a token, 1.5 us of an H200's 4.3 TB/s for 256 tokens, less than a launch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.arguments import FLOAT_TYPES, expect, expect_that
from kernels.kv_pool import expect_pool, form_of, raw
from kernels.launch import Launch
from kernels.on_device import on_device
from kernels.part import part
from kernels.quantized_kv import largest, quantize


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
    k_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads], of a quantized pool
    v_scale_ptr: tl.tensor,  # [blocks, block_size, kv_heads]
    slots_ptr: tl.tensor,  # [tokens]
    q_norm_ptr: tl.tensor,  # [head_dim], with NORMED
    k_norm_ptr: tl.tensor,  # [head_dim]
    norm_eps: tl.tensor,
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
    NORMED: tl.constexpr,
    KV: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, HALF_PADDED)[None, :]
    angle = tl.load(positions_ptr + token).to(tl.int64) * HALF + d
    cos = tl.load(cos_ptr + angle, mask=d < HALF, other=0.0)
    sin = tl.load(sin_ptr + angle, mask=d < HALF, other=0.0)

    heads = tl.arange(0, HEADS_PADDED)[:, None]
    q_mask = (heads < HEADS) & (d < HALF)
    q_low = q_ptr + token * q_token_stride + heads * q_head_stride + d
    low, high = _load_halves(q_low, q_mask, HALF)
    low, high = _rotate(low, high, q_norm_ptr, d, norm_eps, cos, sin, HALF, NORMED)
    tl.store(q_low, low, mask=q_mask)
    tl.store(q_low + HALF, high, mask=q_mask)

    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot < 0:
        return
    kv_heads = tl.arange(0, KV_HEADS_PADDED)[:, None]
    kv_mask = (kv_heads < KV_HEADS) & (d < HALF)
    block = slot // BLOCK_SIZE
    place = block * cache_block_stride + (slot % BLOCK_SIZE) * cache_slot_stride
    target = place + kv_heads * cache_head_stride + d
    scale = slot * KV_HEADS + kv_heads
    low, high = _load_halves(k_ptr + token * k_token_stride + kv_heads * k_head_stride + d, kv_mask, HALF)
    low, high = _rotate(low, high, k_norm_ptr, d, norm_eps, cos, sin, HALF, NORMED)
    _write(low, high, k_cache_ptr + target, k_scale_ptr, scale, kv_mask, kv_heads < KV_HEADS, HALF, KV)
    low, high = _load_halves(v_ptr + token * v_token_stride + kv_heads * v_head_stride + d, kv_mask, HALF)
    _write(low, high, v_cache_ptr + target, v_scale_ptr, scale, kv_mask, kv_heads < KV_HEADS, HALF, KV)


@part
def _load_halves(low_ptr: tl.tensor, mask: tl.tensor, HALF: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    low = tl.load(low_ptr, mask=mask, other=0.0).to(tl.float32)
    return low, tl.load(low_ptr + HALF, mask=mask, other=0.0).to(tl.float32)


@part
def _rotate(
    low: tl.tensor,
    high: tl.tensor,
    norm_ptr: tl.tensor,
    d: tl.tensor,
    norm_eps: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    HALF: tl.constexpr,
    NORMED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    if NORMED:
        squares = tl.sum(low * low + high * high, axis=1)
        rms_inverse = tl.rsqrt(squares / (2 * HALF) + norm_eps)[:, None]
        low = low * rms_inverse * tl.load(norm_ptr + d, mask=d < HALF, other=0.0).to(tl.float32)
        high = high * rms_inverse * tl.load(norm_ptr + HALF + d, mask=d < HALF, other=0.0).to(tl.float32)
    return low * cos - high * sin, high * cos + low * sin


@part
def _write(
    low: tl.tensor,
    high: tl.tensor,
    low_ptr: tl.tensor,
    scale_ptr: tl.tensor,
    scale_offset: tl.tensor,
    mask: tl.tensor,
    scale_mask: tl.tensor,
    HALF: tl.constexpr,
    KV: tl.constexpr,
) -> None:
    """Halves [kv_heads, HALF] float32 into one slot, quantized with the scale of each head."""
    if KV != "model":
        scale = tl.maximum(tl.max(tl.abs(low), axis=1), tl.max(tl.abs(high), axis=1))[:, None] / largest(KV)
        # A maximum leaves NaN out, which a reader must not take for a number: with anything that is not finite in its
        # head the scale is NaN, and the bytes are 0.
        broken = tl.where(tl.abs(low) + tl.abs(high) < float("inf"), 0.0, float("nan"))
        scale += tl.sum(broken, axis=1)[:, None]
        tl.store(scale_ptr + scale_offset, scale, mask=scale_mask)
        low = quantize(tl.where(scale == scale, low, 0.0), scale, KV)  # noqa: PLR0124
        high = quantize(tl.where(scale == scale, high, 0.0), scale, KV)  # noqa: PLR0124
    tl.store(low_ptr, low, mask=mask)
    tl.store(low_ptr + HALF, high, mask=mask)


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
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 0.0,
) -> Tensor:
    """See `Ops.rope_and_cache`. q is changed in place and returned; k and v are left as they are."""
    _check(q, k, v, cos, sin)
    for name, index in (("positions", positions), ("slots", slots)):
        expect(name, index, q.shape[:1], torch.int64, q.device)
    _check_norms(q, q_norm, k_norm)
    expect_pool(k_cache, v_cache, k_scale, v_scale, q, k.shape[1])
    tokens, heads, head_dim = q.shape
    half, kv_heads = head_dim // 2, k.shape[1]
    if tokens == 0:
        return q
    on_device(q.device, _rope_and_cache_kernel, (tokens,))(
        q,
        k,
        v,
        cos,
        sin,
        positions,
        raw(k_cache),
        raw(v_cache),
        k_scale,
        v_scale,
        slots,
        q_norm,
        k_norm,
        norm_eps,
        *q.stride()[:2],
        *k.stride()[:2],
        *v.stride()[:2],
        *k_cache.stride()[:3],
        HEADS=heads,
        KV_HEADS=kv_heads,
        HALF=half,
        BLOCK_SIZE=k_cache.shape[1],
        HEADS_PADDED=triton.next_power_of_2(heads),
        KV_HEADS_PADDED=triton.next_power_of_2(kv_heads),
        HALF_PADDED=triton.next_power_of_2(half),
        NORMED=q_norm is not None,
        KV=form_of(k_cache),
        enable_fp_fusion=True,
    )
    return q


def _check(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor) -> None:
    expect("q", q, (None, None, None), FLOAT_TYPES, q.device, strided=True)
    tokens, _, head_dim = q.shape
    expect_that("q", head_dim % 2 == 0, "heads of an even size: an element turns with the one half a head further")
    expect("k", k, (tokens, None, head_dim), FLOAT_TYPES, q.device, strided=True)
    expect("v", v, k.shape, FLOAT_TYPES, q.device, strided=True)
    expect("cos", cos, (None, head_dim // 2), torch.float32, q.device)
    expect("sin", sin, cos.shape, torch.float32, q.device)


def _check_norms(q: Tensor, q_norm: Tensor | None, k_norm: Tensor | None) -> None:
    expect_that("k_norm", (q_norm is None) == (k_norm is None), "both norms or none")
    for name, norm in (("q_norm", q_norm), ("k_norm", k_norm)):
        if norm is not None:
            expect(name, norm, q.shape[2:], FLOAT_TYPES, q.device)


def launches(architecture: str) -> list[Launch]:  # noqa: ARG001  the same on every one
    """See `Launch`. Shapes of Llama-3.1-8B, Qwen3-8B, the demo model, and a head dim that is no power of two."""
    models = [(32, 8, 128, False), (32, 8, 128, True), (9, 3, 64, False), (5, 1, 80, False)]
    pools = (torch.bfloat16, torch.int8, torch.float8_e4m3fn)
    return [
        Launch(
            f"rope {heads}/{kv_heads} x {head_dim} {str(pool).removeprefix('torch.')}{' normed' if normed else ''}",
            lambda shape=(heads, kv_heads, head_dim), normed=normed, pool=pool: _launch(shape, pool, normed=normed),
            checked=normed,
        )
        for heads, kv_heads, head_dim, normed in models
        for pool in pools
    ]


def _launch(shape: tuple[int, int, int], pool: torch.dtype, *, normed: bool) -> None:
    heads, kv_heads, head_dim = shape
    qkv = torch.zeros(2, heads + 2 * kv_heads, head_dim, dtype=torch.bfloat16)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    cache = torch.zeros(2, 16, kv_heads, head_dim).to(pool)
    scale = None if pool == torch.bfloat16 else torch.zeros(cache.shape[:3])
    norm = torch.zeros(head_dim, dtype=torch.bfloat16) if normed else None
    angles, index = torch.zeros(2, head_dim // 2), torch.zeros(2, dtype=torch.int64)
    rope_and_cache(
        q,
        k,
        v,
        cos=angles,
        sin=angles,
        positions=index,
        k_cache=cache,
        v_cache=cache,
        slots=index,
        k_scale=scale,
        v_scale=scale,
        q_norm=norm,
        k_norm=norm,
    )
