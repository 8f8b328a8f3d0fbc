"""Each operation written plainly in float32, one sequence and one head group at a time: what the others must equal.

Slow on purpose. Knows the shapes of `ops.Ops` and nothing else.
"""

import torch
from torch import Tensor


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
    ) -> Tensor:
        cos, sin = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)  # [tokens, 1, head_dim / 2]
        rotated = _rotate(k, cos, sin)
        block_size = k_cache.shape[1]
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                k_cache[slot // block_size, slot % block_size] = rotated[token].to(k_cache.dtype)
                v_cache[slot // block_size, slot % block_size] = v[token].to(v_cache.dtype)
        return _rotate(q, cos, sin)

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
        out = torch.zeros_like(q)
        group = q.shape[1] // k_cache.shape[2]
        for sequence, context in enumerate(context_lens.tolist()):
            start, end = query_start[sequence : sequence + 2].tolist()
            # [context, kv_heads, head_dim] -> [heads, context, head_dim]
            keys, values = (
                cache[block_tables[sequence].long()].flatten(0, 1)[:context].float().repeat_interleave(group, 1)
                for cache in (k_cache, v_cache)
            )
            scores = torch.einsum("qhd,khd->hqk", q[start:end].float(), keys) * scale
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
    """x: [tokens, heads, head_dim], halves paired."""
    first, second = x.float().chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
