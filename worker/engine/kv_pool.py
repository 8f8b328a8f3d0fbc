"""The KV pool of a device: its memory, in the model's type or in 8 bits, and the bytes per token.

Does not know which blocks are in use. Invariant: a pool has scales exactly if it is quantized, and `token_bytes`
includes them, so a pool of n tokens takes n times that.
"""

from typing import Literal

import torch
from torch import Tensor

from worker.models.config import ModelConfig
from worker.models.decoder import KvPool

KvDtype = Literal["auto", "fp8", "int8"]

_SCALE = torch.float32  # type of the scale of one token and KV head
_EIGHT_BITS = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def pool_dtype(name: KvDtype, model_dtype: torch.dtype) -> torch.dtype:
    """`auto` is the type of activations."""
    return _EIGHT_BITS.get(name, model_dtype)


def token_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes of one token, over all layers."""
    scales = 2 * config.layers * config.kv_heads * _SCALE.itemsize if _is_quantized(dtype) else 0
    return config.kv_elements_per_token * dtype.itemsize + scales


def kv_pool(
    config: ModelConfig, *, blocks_total: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> KvPool:
    shape = (blocks_total, block_size, config.kv_heads, config.head_dim)

    def layers(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.layers)]

    pool = KvPool(layers(shape, dtype), layers(shape, dtype))
    if _is_quantized(dtype):
        pool.key_scales, pool.value_scales = layers(shape[:3], _SCALE), layers(shape[:3], _SCALE)
    return pool


def _is_quantized(dtype: torch.dtype) -> bool:
    return dtype in _EIGHT_BITS.values()
