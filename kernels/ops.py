"""The operations that a decoder needs beyond matrix multiplication, as one protocol.

Implementations: `reference.ReferenceOps` (plain, exact, slow), `cpu.CpuOps`, `triton_ops.TritonOps`. Each agrees
with the reference on every shape. Nothing here knows a model, a scheduler or a request.

Shapes. All tokens of a step are packed without padding; sequence `i` owns rows `query_start[i]:query_start[i + 1]`,
which are the last tokens of its `context_lens[i]` tokens. A KV pool of one layer is
`[blocks, block_size, kv_heads, head_dim]`; a slot is `block * block_size + offset`; block 0 is the null block.
A pool is in the model's type, or quantized: int8 or float8_e4m3fn with a scale for each token and KV head,
`[blocks, block_size, kv_heads]` float32, so that `k` is about `k_cache * k_scale`. Scales are given if, and only if,
the pool is quantized.

Invariant: no row of a result depends on the values (only on the number) of rows of other sequences.
"""

from typing import Protocol

from torch import Tensor

from kernels.attention_scratch import AttentionScratch


class Ops(Protocol):
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """`x / rms(x) * weight` over the last dimension, accumulated in float32. x: [tokens, hidden]."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)`; both may reuse the memory of the inputs."""
        ...

    def rope_and_cache(
        self,
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
        """Rotate q and k by their positions (halves paired: element `d` with `d + head_dim / 2`), write k and v to
        `slots` (-1 is skipped), and return the rotated q. q may be changed in place.

        With q_norm and k_norm (both, [head_dim]), each head of q and k first becomes its `rms_norm` with `norm_eps`.
        Into a quantized pool, k and v are written as `value / scale` rounded to nearest, where the scale, which is
        written beside them, is the largest magnitude of that token and head over 127 (int8) or 448 (float8).

        q: [tokens, heads, head_dim]; k, v: [tokens, kv_heads, head_dim]; these three may be strided views whose
        last dimension is contiguous. cos, sin: [context_length, head_dim / 2] float32. positions, slots: [tokens]
        int64.
        """
        ...

    def paged_attention(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        *,
        block_tables: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int | None,
        soft_cap: float | None = None,
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
        scratch: AttentionScratch | None = None,
        queries_max: int | None = None,
        decodes: int | None = None,
    ) -> Tensor:
        """Causal attention of each packed query over its own sequence in the pool. Returns [tokens, heads, head_dim].

        The query at position p sees the keys at positions k with p - window < k <= p; all k <= p without a window.
        Query head `h` reads KV head `h // (heads // kv_heads)`. block_tables: [sequences, blocks_max] int32, padded
        with 0; query_start: [sequences + 1] int32; context_lens: [sequences] int32, of which the queries are the last.
        Slots past `context_lens` may hold anything, NaN included, in the pool and in its scales, and must not matter.
        With a soft cap, a score `s` (scaled) becomes `soft_cap * tanh(s / soft_cap)`.

        Two arguments help a device and change no result. scratch: memory for long contexts, at least for as many
        sequences and blocks as `block_tables` has; without it the call allocates its own. queries_max: a bound on the
        queries of one sequence, so that what a batch cannot need is not launched.

        decodes: how many sequences, the first ones, generate; by default all with one query. Where prompts add in
        another order than decodes, a prompt of which one token is left must still be computed as a prompt.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up`. gate_up: [tokens, 2 * intermediate], gate first. Returns [tokens, intermediate]."""
        ...
