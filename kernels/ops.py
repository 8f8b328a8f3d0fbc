"""The operations that a decoder needs beyond matrix multiplication, as one protocol.

Implementations: `reference.ReferenceOps` (plain, exact, slow), `cpu.CpuOps`, `triton_ops.TritonOps`. Each agrees
with the reference on every shape. Nothing here knows a model, a scheduler or a request.

Shapes. All tokens of a step are packed without padding; sequence `i` owns rows `query_start[i]:query_start[i + 1]`,
which are the last tokens of its `context_lens[i]` tokens. A KV pool of one layer is
`[blocks, block_size, kv_heads, head_dim]`; a slot is `block * block_size + offset`; block 0 is the null block.

Invariant: no row of a result depends on the values (only on the number) of rows of other sequences.
"""

from typing import Protocol

from torch import Tensor


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
    ) -> Tensor:
        """Rotate q and k by their positions (halves paired: element `d` with `d + head_dim / 2`), write k and v to
        `slots` (-1 is skipped), and return the rotated q. q may be changed in place.

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
    ) -> Tensor:
        """Causal attention of each packed query over its own sequence in the pool. Returns [tokens, heads, head_dim].

        The query at position p sees the keys at positions k with p - window < k <= p; all k <= p without a window.
        Query head `h` reads KV head `h // (heads // kv_heads)`. block_tables: [sequences, blocks_max] int32, padded
        with 0; query_start: [sequences + 1] int32; context_lens: [sequences] int32, of which the queries are the last.
        Slots past `context_lens` may hold anything, NaN included, and must not matter.
        """
        ...

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        """`silu(gate) * up`. gate_up: [tokens, 2 * intermediate], gate first. Returns [tokens, intermediate]."""
        ...
