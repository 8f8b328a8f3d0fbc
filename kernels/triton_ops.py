"""The `Ops` of a CUDA device: each operation is the Triton kernel in the file of its name.

Knows nothing but where each operation lies. Launches are asynchronous on the current stream, and none waits for the
device. Q, K and V have one type, and so has the KV pool unless it is quantized; norm weights may have another.
"""

from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_cache import rope_and_cache
from kernels.silu_and_mul import silu_and_mul


class TritonOps:
    """Implements `kernels.ops.Ops`."""

    rms_norm = staticmethod(rms_norm)
    add_rms_norm = staticmethod(add_rms_norm)
    rope_and_cache = staticmethod(rope_and_cache)
    paged_attention = staticmethod(paged_attention)
    silu_and_mul = staticmethod(silu_and_mul)
