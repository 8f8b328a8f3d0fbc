"""Conversions of K and V to and from eight bits, inside kernels.

Owns the conversions of each form of a pool (`kv_pool.KvForm`). Source of E4M3: OCP's 8-bit floating point (1 sign,
4 exponent, 3 mantissa bits, bias 7).

Invariant: a conversion is exact or rounds to nearest, ties to even, the same on every architecture. Chips below sm_89
have no instruction for E4M3, so bytes are taken apart with integers there; writing always does so.
"""

import triton.language as tl

from kernels.part import part


@part
def quantize(x: tl.tensor, scale: tl.tensor, KV: tl.constexpr) -> tl.tensor:
    """x, scale: float32; the bytes of x / scale, which is at most what the form can hold."""
    y = x / tl.where(scale > 0.0, scale, 1.0)
    if KV == "int8":
        # Added to 1.5 * 2^23, a float32 has no room for a fraction: it is rounded to even, as torch.round does.
        whole = tl.minimum(tl.maximum((y + 12582912.0) - 12582912.0, -127.0), 127.0).to(tl.int8)
    else:
        y = tl.minimum(tl.maximum(y, -448.0), 448.0)
        # 2^(7 - 127): the exponent's bias becomes E4M3's, and what is subnormal there is subnormal here. 20 bits go.
        bits = (y * 7.52316384526264e-37).to(tl.int32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
        whole = (((bits >> 24) & 0x80) | rounded).to(tl.uint8)
    return whole


@part
def largest(KV: tl.constexpr) -> float:
    return 127.0 if KV == "int8" else 448.0


@part
def widen(x: tl.tensor, dtype: tl.dtype, KV: tl.constexpr, NATIVE_FP8: tl.constexpr) -> tl.tensor:
    """Loaded bytes in the type of the queries, not yet scaled. Exact."""
    if KV == "int8":
        wide = x.to(dtype)
    elif NATIVE_FP8:
        wide = x.to(tl.float8e4nv, bitcast=True).to(dtype)
    else:
        # Shifted into a float16 the exponent lacks 8 of its bias. A NaN, which is never written, would become 480.
        byte = x.to(tl.int16)
        bits = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        wide = (bits.to(tl.float16, bitcast=True) * 256.0).to(dtype)
    return wide
