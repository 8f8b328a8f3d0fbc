"""The tensors of a KV pool, as launchers take them.

Owns the three forms that a pool may have, the checks of its tensors, and the view of E4M3 as bytes. Knows no kernel and
no block table. Invariant: K and V have one form and one layout, and scales exactly when the form has 8 bits.
"""

from typing import Literal

import torch
from torch import Tensor

from kernels.arguments import expect, expect_that

KvForm = Literal["model", "int8", "fp8"]

_QUANTIZED: dict[torch.dtype, KvForm] = {torch.int8: "int8", torch.float8_e4m3fn: "fp8"}


def form_of(cache: Tensor) -> KvForm:
    return _QUANTIZED.get(cache.dtype, "model")


def expect_pool(
    k_cache: Tensor, v_cache: Tensor, k_scale: Tensor | None, v_scale: Tensor | None, q: Tensor, kv_heads: int | None
) -> None:
    """Raises ValueError unless the caches are [blocks, block_size, kv_heads, head_dim], perhaps strided views, of the
    queries' type without scales, or of 8 bits with scales [blocks, block_size, kv_heads]. kv_heads: None is any number.
    """
    expect("k_cache", k_cache, (None, None, kv_heads, q.shape[2]), (q.dtype, *_QUANTIZED), q.device, strided=True)
    expect_that("k_cache", min(k_cache.shape[1:]) > 0, "block_size, kv_heads and head_dim above 0")
    expect("v_cache", v_cache, k_cache.shape, k_cache.dtype, q.device, strided=True)
    expect_that("v_cache", v_cache.stride() == k_cache.stride(), "the strides of k_cache")
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        expect_that(name, (scale is not None) == (k_cache.dtype in _QUANTIZED), "scales exactly for a pool of 8 bits")
        if scale is not None:
            expect(name, scale, k_cache.shape[:3], torch.float32, q.device)


def raw(cache: Tensor) -> Tensor:
    """E4M3 as plain bytes, which every chip can load; other types unchanged."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
