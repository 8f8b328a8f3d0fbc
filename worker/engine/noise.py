"""The randomness of a draw: unit-exponential noise, a function of (seed, choice, position, token) and of nothing else.

Counter-based: no generator and no state, so the noise is the same in any batch, after preemption and on another worker.
Works on whatever device the tokens are on.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from worker.engine.batch import SampleParams


def noise_keys(params: list[SampleParams], device: torch.device) -> Tensor:
    """[rows, 2] int32: 64 well-mixed bits of (seed, choice, position) for each row."""
    counters = np.array([(p.seed, p.choice, p.position) for p in params], np.uint64)  # [rows, 3]
    mixed = _splitmix(_splitmix(_splitmix(counters[:, 0]) ^ counters[:, 1]) ^ counters[:, 2])
    return torch.from_numpy(mixed.view(np.int32).reshape(-1, 2)).to(device)


def exponential(keys: Tensor, tokens: Tensor) -> Tensor:
    """Noise [rows, n] for `tokens`, int32 [rows, n] or [1, n]. Its negative logarithm is Gumbel noise.

    A multiply-xorshift hash (the finalizer of MurmurHash3, Appleby) of the token, keyed twice. Computed in place in two
    buffers: allocating new ones took most of the time.
    """
    x = (tokens * _int32(0x9E3779B1)) ^ keys[:, :1]
    shifted = torch.empty_like(x)
    _fold(x, 16, shifted).mul_(_int32(0x85EBCA6B)).bitwise_xor_(keys[:, 1:])
    _fold(x, 13, shifted).mul_(_int32(0xC2B2AE35))
    _fold(x, 16, shifted).bitwise_and_(0x7FFFFFFF)
    minus_uniform = shifted.view(torch.float32).copy_(x).add_(0.5).mul_(-(2.0**-31))
    # log1p keeps the small values (likely winners) exact; -1 itself would give infinity
    return minus_uniform.clamp_min_(2.0**-24 - 1.0).log1p_().neg_()


def _fold(x: Tensor, bits: int, shifted: Tensor) -> Tensor:
    """In place: x ^ x >> bits, as of unsigned numbers."""
    torch.bitwise_right_shift(x, bits, out=shifted)
    return x.bitwise_xor_(shifted.bitwise_and_((1 << 32 - bits) - 1))


def _splitmix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea and Flood, 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def _int32(value: int) -> int:
    return value - (1 << 32)  # all constants here have the top bit set
