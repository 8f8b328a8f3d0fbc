"""The randomness of a draw on the device: the same bits for the same counters as in any other implementation.

    key   = splitmix(splitmix(splitmix(seed) ^ choice) ^ position)        64 bits, low and high half
    hash  = murmur_finalizer(token, keyed with low before and with high in the middle)
    noise = log(-log1p(-(hash mod 2^31 + 1/2) / 2^31))                    minus it is Gumbel noise

Sources: SplitMix64 (Steele, Lea and Flood, 2014), the finalizer of MurmurHash3 (Appleby). About 20 integer and 40
floating-point instructions a token, no memory. Owns device functions alone; kernels call them.

Invariant: a function of (seed, choice, position, token) and of nothing else, so a row draws alike in any batch, after
preemption and on another worker. The integers are exact everywhere; the logarithms are right to a few units in the
last place.
"""

from typing import Any

import triton.language as tl

from kernels.part import part


@part
def _splitmix(x: tl.tensor) -> tl.tensor:
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@part
def key_of(seed: tl.tensor, choice: tl.tensor, position: tl.tensor) -> Any:
    """Two uint32, of int64 whose bits are taken as they are."""
    mixed = _splitmix(seed.to(tl.uint64, bitcast=True)) ^ choice.to(tl.uint64, bitcast=True)
    mixed = _splitmix(_splitmix(mixed) ^ position.to(tl.uint64, bitcast=True))
    return mixed.to(tl.uint32), (mixed >> 32).to(tl.uint32)


@part
def noise_of(low: tl.tensor, high: tl.tensor, tokens: tl.tensor) -> tl.tensor:
    """float32, to be taken from the logits of `tokens`."""
    x = (tokens.to(tl.uint32) * 0x9E3779B1) ^ low
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) ^ high
    x = (x ^ (x >> 13)) * 0xC2B2AE35
    x = (x ^ (x >> 16)) & 0x7FFFFFFF
    minus_uniform = (x.to(tl.int32).to(tl.float32) + 0.5) * -(2.0**-31)
    return tl.log(-_log1p(tl.maximum(minus_uniform, 2.0**-24 - 1.0)))


@part
def _log1p(x: tl.tensor) -> tl.tensor:
    """log(1 + x), exact to a few units in the last place also where x is tiny (Kahan's quotient)."""
    rounded = 1.0 + x
    same = rounded == 1.0
    return tl.where(same, x, tl.log(rounded) * (x / tl.where(same, 1.0, rounded - 1.0)))
