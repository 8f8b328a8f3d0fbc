"""Each operation written plainly in float32, one sequence and one head group at a time: what the others must equal.

Slow on purpose. Knows the shapes of `ops.Ops` and nothing else.
"""

import torch
from torch import Tensor

from kernels.attention_scratch import AttentionScratch


class ReferenceOps:
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        total = x + residual
        return self.rms_norm(total, weight, eps), total

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
        cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)  # [tokens, 1, head_dim / 2]
        wide_q, wide_k = q.float(), k.float()
        if q_norm is not None and k_norm is not None:
            wide_q, wide_k = self.rms_norm(wide_q, q_norm, norm_eps), self.rms_norm(wide_k, k_norm, norm_eps)
        rotated = _rotate(wide_k, cos, sin)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                _write(rotated[token], slot, k_cache, k_scale)
                _write(v[token].float(), slot, v_cache, v_scale)
        return _rotate(wide_q, cos, sin).to(q.dtype)

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
        scratch: AttentionScratch | None = None,  # noqa: ARG002
        queries_max: int | None = None,  # noqa: ARG002
        decodes: int | None = None,  # noqa: ARG002
    ) -> Tensor:
        out = torch.zeros_like(q)
        group = q.shape[1] // k_cache.shape[2]
        for sequence, context in enumerate(context_lens.tolist()):
            start, end = query_start[sequence : sequence + 2].tolist()
            keys, values = (  # [context, heads, head_dim]
                _read(cache, scales, block_tables[sequence], context).repeat_interleave(group, 1)
                for cache, scales in ((k_cache, k_scale), (v_cache, v_scale))
            )
            scores = torch.einsum("qhd,khd->hqk", q[start:end].float(), keys) * scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            visible = _visible(end - start, context, window).to(q.device)
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            out[start:end] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
        return out

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, -1)
        return (gate * torch.sigmoid(gate) * up).to(gate_up.dtype)


def _visible(queries: int, context: int, window: int | None) -> Tensor:
    """[queries, context] bool: which keys each of the last `queries` positions sees."""
    behind = torch.arange(context - queries, context).unsqueeze(1) - torch.arange(context)
    return (behind >= 0) if window is None else (behind >= 0) & (behind < window)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x: [tokens, heads, head_dim] float32, halves paired."""
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _write(x: Tensor, slot: int, cache: Tensor, scales: Tensor | None) -> None:
    """One token's k or v, [kv_heads, head_dim] float32."""
    place = divmod(slot, cache.shape[1])
    if scales is not None:
        largest = 127.0 if cache.dtype == torch.int8 else torch.finfo(cache.dtype).max
        scales[place] = x.abs().amax(-1) / largest
        x = x / scales[place].unsqueeze(-1).where(scales[place].unsqueeze(-1) > 0, 1.0)
        x = (x.round() if cache.dtype == torch.int8 else x).clamp(-largest, largest)
    cache[place] = x.to(cache.dtype)


def _read(cache: Tensor, scales: Tensor | None, table: Tensor, context: int) -> Tensor:
    """A sequence's k or v, [context, kv_heads, head_dim] float32."""
    content = cache[table.long()].flatten(0, 1)[:context].float()
    return content if scales is None else content * scales[table.long()].flatten(0, 1)[:context].unsqueeze(-1)
