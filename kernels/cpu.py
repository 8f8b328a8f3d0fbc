"""The operations on a CPU, fast, for float32 and bfloat16 activations over a float32 KV pool.

Decode attention, rotation, norms and the gate are compiled loops (`cpu_loops`), which read K and V where they lie in
the pool. Prompts copy their own context, one sequence at a time (`prompt_attention`).

Everything is computed in float32; bfloat16 is only how results are handed on.
"""

from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels import cpu_loops
from kernels.attention_scratch import AttentionScratch
from kernels.packed_weight import fresh
from kernels.prompt_attention import prompt_attention


@dataclass(slots=True)
class _Prompt:
    """One sequence with several queries in this step."""

    start: int  # first row in the packed batch
    end: int
    sequence: int
    context: int


@dataclass(slots=True)
class _Plan:
    """What attention derives from the step's index tensors; the same for every layer."""

    block_tables: Tensor
    prompts: list[_Prompt]
    rows: NDArray[np.int64]  # [decodes] their rows in the packed batch
    sequences: NDArray[np.int64]  # [decodes]
    heads_each: int  # KV heads per thread
    tables: NDArray[np.int32]  # block_tables and context_lens
    contexts: NDArray[np.int32]


@dataclass(slots=True)
class _Turn:
    """The same for rotation and cache writes, used by every layer."""

    positions: Tensor
    slots: Tensor
    arrays: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]  # cos, sin, these two


class CpuOps:
    """`ops.Ops` for one decoder, called from one thread.

    What all layers derive from a step's index tensors is computed once, and recognised by the identity of those
    tensors, so they must not be changed in place.
    """

    def __init__(self) -> None:
        self._plan: _Plan | None = None
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
        decodes: int | None = None,
    ) -> Tensor:
        _refuse(quantized=k_scale is not None or v_scale is not None, capped=soft_cap is not None)
        plan = self._plan
        if plan is None or plan.block_tables is not block_tables:
            plan = self._plan = _make_plan(k_cache.shape[2], block_tables, query_start, context_lens, decodes)
        wide = _wide(q).numpy()
        out, array = fresh(wide.shape)
        keys, values = k_cache.numpy(), v_cache.numpy()
        for prompt in plan.prompts:
            own = slice(prompt.start, prompt.end)
            table = plan.tables[prompt.sequence]
            prompt_attention(wide[own], keys, values, table, prompt.context, window or 0, np.float32(scale), array[own])
        if plan.rows.size:
            cpu_loops.decode_attention(
                wide,
                keys,
                values,
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
    """KV heads per thread. They are contiguous: reading all in one stream is 2.7 times faster at 16 sequences of 264
    tokens, unless that would leave threads without work.
    """
    return kv_heads if sequences >= numba.get_num_threads() else 1


def _make_plan(
    kv_heads: int, block_tables: Tensor, query_start: Tensor, context_lens: Tensor, decodes: int | None
) -> _Plan:
    starts, contexts = query_start.tolist(), context_lens.tolist()
    prompts: list[_Prompt] = []
    decoding: list[int] = []
    for sequence, context in enumerate(contexts):
        start, end = starts[sequence], starts[sequence + 1]
        if end - start == 1 and (decodes is None or sequence < decodes):
            decoding.append(sequence)
        elif end > start:
            prompts.append(_Prompt(start, end, sequence, context))
    sequences = np.array(decoding, np.int64)
    return _Plan(
        block_tables,
        prompts,
        rows=query_start.numpy()[sequences].astype(np.int64),
        sequences=sequences,
        heads_each=_heads_each(len(decoding), kv_heads),
        tables=block_tables.numpy(),
        contexts=context_lens.numpy(),
    )
