"""The operations on a CPU, fast, for float32 and bfloat16 activations over a float32 KV pool.

Decode attention, rotation, norms and the gate are compiled loops (`cpu_loops`), which read K and V where they lie in
the pool. Prompts gather their own context, one sequence at a time, and take torch's flash attention.

Everything is computed in float32; bfloat16 is only how results are handed on.
"""

import math
from dataclasses import dataclass

import numba
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from kernels import cpu_loops
from kernels.attention_scratch import AttentionScratch
from kernels.packed_weight import fresh


@dataclass(slots=True)
class _Prompt:
    """One sequence with several queries in this step."""

    start: int  # first row in the packed batch
    end: int
    slots: Tensor  # [seen] where the K and V that any query sees lie, in order
    mask: Tensor | None  # [queries, seen] added to the scores; None when the queries are all that is seen


@dataclass(slots=True)
class _Plan:
    """What attention derives from the step's index tensors; the same for every layer with the same window."""

    block_tables: Tensor
    prompts: list[_Prompt]
    rows: NDArray[np.int64]  # [decodes] their rows in the packed batch
    sequences: NDArray[np.int64]  # [decodes]
    heads_each: int  # KV heads that one thread takes
    tables: NDArray[np.int32]  # block_tables and context_lens
    contexts: NDArray[np.int32]


@dataclass(slots=True)
class _Turn:
    """The same for rotation and cache writes, of every layer."""

    positions: Tensor
    slots: Tensor
    arrays: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]  # cos, sin, these two


class CpuOps:
    """`ops.Ops` for one decoder, from one thread.

    What all layers derive from a step's index tensors is computed once and recognised by those tensors' identity, so
    they must not be changed in place.
    """

    def __init__(self) -> None:
        self._plans: dict[int | None, _Plan] = {}  # by window
        self._turn: _Turn | None = None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = _wide(x).contiguous()
        out, array = fresh(wide.shape)
        cpu_loops.rms_norm(wide.numpy(), _wide(weight).numpy(), np.float32(eps), array)
        return _as(x, out)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        wide, total = _wide(x), _wide(residual)  # in float32, total is residual itself
        out, array = fresh(wide.shape)
        cpu_loops.add_rms_norm(wide.numpy(), total.numpy(), _wide(weight).numpy(), np.float32(eps), array)
        return _as(x, out), _as(x, total)

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
        _refuse(quantized=k_scale is not None or v_scale is not None)
        if q_norm is not None and k_norm is not None:
            q, k = self._norm_heads(q, q_norm, norm_eps), self._norm_heads(k, k_norm, norm_eps)
        turn = self._turn
        if turn is None or turn.positions is not positions or turn.slots is not slots:
            arrays = (cos.numpy(), sin.numpy(), positions.numpy(), slots.numpy())
            turn = self._turn = _Turn(positions, slots, arrays)
        cosines, sines, places, targets = turn.arrays
        wide, keys, values = (_wide(part).contiguous() for part in (q, k, v))
        out, array = fresh(wide.shape)
        cpu_loops.rope_and_cache(
            wide.numpy(),
            keys.numpy(),
            values.numpy(),
            cosines,
            sines,
            places,
            k_cache.numpy(),
            v_cache.numpy(),
            targets,
            array,
        )
        return _as(q, out)

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
        scratch: AttentionScratch | None = None,  # noqa: ARG002  nothing waits in memory here
        queries_max: int | None = None,  # noqa: ARG002
    ) -> Tensor:
        _refuse(quantized=k_scale is not None or v_scale is not None, capped=soft_cap is not None)
        plan = self._plans.get(window)
        if plan is None or plan.block_tables is not block_tables:
            plan = self._plans[window] = _make_plan(k_cache.shape, block_tables, query_start, context_lens, window)
        wide = _wide(q)
        out, array = fresh(wide.shape)
        for prompt in plan.prompts:
            out[prompt.start : prompt.end] = _attend_prompt(prompt, wide, k_cache, v_cache, scale)
        if plan.rows.size:
            cpu_loops.decode_attention(
                wide.numpy(),
                k_cache.numpy(),
                v_cache.numpy(),
                plan.rows,
                plan.sequences,
                plan.tables,
                plan.contexts,
                window or 0,
                plan.heads_each,
                np.float32(scale),
                array,
            )
        return _as(q, out)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        wide = _wide(gate_up)
        out, array = fresh((wide.shape[0], wide.shape[1] // 2))
        cpu_loops.silu_and_mul(wide.numpy(), array)
        return _as(gate_up, out)

    def _norm_heads(self, heads: Tensor, weight: Tensor, eps: float) -> Tensor:
        """heads: [tokens, heads, head_dim], each normed by itself."""
        return self.rms_norm(heads.reshape(-1, heads.shape[2]), weight, eps).view(heads.shape)


def _refuse(*, quantized: bool = False, capped: bool = False) -> None:
    if quantized:
        raise NotImplementedError("on a CPU the KV pool is float32: it takes no scales")
    if capped:
        raise NotImplementedError("on a CPU attention has no soft cap")


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float32 else x.float()


def _as(x: Tensor, out: Tensor) -> Tensor:
    """Out, in x's type."""
    return out if x.dtype == torch.float32 else out.to(x.dtype)


def _heads_each(sequences: int, kv_heads: int) -> int:
    """KV heads that one thread takes. They lie side by side: all are read in one stream, 2.7 times faster at 16
    sequences of 264 tokens, unless that would leave threads without work.
    """
    return kv_heads if sequences >= numba.get_num_threads() else 1


def _attend_prompt(prompt: _Prompt, q: Tensor, k_cache: Tensor, v_cache: Tensor, scale: float) -> Tensor:
    kv_heads = k_cache.shape[2]
    keys, values = (  # [1, kv_heads, context, head_dim]
        cache.view(-1, *cache.shape[2:]).index_select(0, prompt.slots).transpose(0, 1).unsqueeze(0)
        for cache in (k_cache, v_cache)
    )
    queries = q[prompt.start : prompt.end]  # [queries, heads, head_dim]
    grouped = queries.view(queries.shape[0], kv_heads, -1, queries.shape[2]).permute(2, 1, 0, 3)
    out = F.scaled_dot_product_attention(
        grouped,
        keys.expand(grouped.shape[0], -1, -1, -1),
        values.expand(grouped.shape[0], -1, -1, -1),
        attn_mask=prompt.mask,
        is_causal=prompt.mask is None,
        scale=scale,
    )
    return out.permute(2, 1, 0, 3).reshape(queries.shape)


def _make_plan(
    pool: torch.Size, block_tables: Tensor, query_start: Tensor, context_lens: Tensor, window: int | None
) -> _Plan:
    block_size, kv_heads = pool[1], pool[2]
    starts, contexts = query_start.tolist(), context_lens.tolist()
    prompts: list[_Prompt] = []
    decodes: list[int] = []
    for sequence, context in enumerate(contexts):
        start, end = starts[sequence], starts[sequence + 1]
        if end - start == 1:
            decodes.append(sequence)
        elif end > start:
            queries = end - start
            first = 0 if window is None else max(0, context - queries - window + 1)
            seen = torch.arange(first, context)
            slots = block_tables[sequence][seen // block_size].long() * block_size + seen % block_size
            prompts.append(_Prompt(start, end, slots, _mask(queries, context - first, window)))
    sequences = np.array(decodes, np.int64)
    return _Plan(
        block_tables,
        prompts,
        rows=query_start.numpy()[sequences].astype(np.int64),
        sequences=sequences,
        heads_each=_heads_each(len(decodes), kv_heads),
        tables=block_tables.numpy(),
        contexts=context_lens.numpy(),
    )


def _mask(queries: int, seen: int, window: int | None) -> Tensor | None:
    if queries == seen and (window is None or window >= seen):
        return None
    mask = torch.full((queries, seen), -math.inf).triu(seen - queries + 1)
    if window is not None:
        mask += torch.full((queries, seen), -math.inf).tril(seen - queries - window)
    return mask
