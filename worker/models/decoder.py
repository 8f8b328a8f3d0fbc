"""The decoder: packed token ids in, logits of the sampled rows out. One decoder, shaped by ModelConfig.

Owns the order of the operations. `kernels.ops` owns how they run, `weights` where the numbers come from, and the runner
the KV pool. Pre-norm transformer with grouped-query attention, rotary embedding and a gated MLP (Touvron et al., 2023).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention_scratch import AttentionScratch
from kernels.ops import Ops
from worker.models.config import ModelConfig
from worker.models.weights import Weights

ROPE_POSITIONS = 2**14  # positions whose angles are computed at a time


@dataclass(slots=True)
class StepTensors:
    """`engine.batch.Batch` on the device."""

    ids: Tensor  # [tokens] int64
    positions: Tensor  # [tokens] int64
    slots: Tensor  # [tokens] int64
    query_start: Tensor  # [sequences + 1] int32
    context_lens: Tensor  # [sequences] int32
    block_tables: Tensor  # [sequences, blocks_max] int32
    sample_rows: Tensor  # [samples] int64
    decodes: int = 0  # how many sequences, the first ones, compute a token they generated, the others prompts
    queries_max: int | None = None  # an upper bound on the tokens of one sequence, if known
    scratch: AttentionScratch | None = None  # for long contexts; without it each layer allocates its own
    logits: Tensor | None = (
        None  # [samples, vocab] float32, the buffer to write them to; without it a new one is allocated
    )


@dataclass(slots=True)
class KvPool:
    """K and V of every layer, each [blocks, block_size, kv_heads, head_dim]."""

    keys: list[Tensor]
    values: list[Tensor]
    key_scales: list[Tensor] | None = None  # of a quantized pool: [blocks, block_size, kv_heads] float32 of each layer
    value_scales: list[Tensor] | None = None

    def clear(self) -> None:
        """Give the memory back."""
        for tensors in (self.keys, self.values, self.key_scales, self.value_scales):
            if tensors is not None:
                tensors.clear()


# Turns embedded rows into the normalized rows for the head, [tokens, hidden].
Layers = Callable[[Tensor, StepTensors, KvPool], Tensor]


class Decoder:
    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        self.config, self.weights, self.ops = config, weights, ops
        self.scale = config.head_dim**-0.5
        self.cos, self.sin = _rope_tables(config, weights.rope_factors, weights.embedding.device)
        self.layers: Layers = self._one_by_one  # on a CPU `whole_layers` may replace this

    @torch.inference_mode()
    def forward(self, step: StepTensors, pool: KvPool) -> Tensor:
        """Writes K and V of every token to the pool. Returns float32 logits [samples, vocab]."""
        residual = self.weights.embedding[step.ids]
        x = self.layers(residual, step, pool)
        logits = self.weights.head(x[step.sample_rows])
        return logits.float() if step.logits is None else step.logits.copy_(logits)

    def _one_by_one(self, residual: Tensor, step: StepTensors, pool: KvPool) -> Tensor:
        weights, ops, eps = self.weights, self.ops, self.config.rms_eps
        x = ops.rms_norm(residual, weights.layers[0].attention_norm, eps)
        next_norms = [layer.attention_norm for layer in weights.layers[1:]] + [weights.final_norm]
        for index, (layer, next_norm) in enumerate(zip(weights.layers, next_norms, strict=True)):
            attended = self._attention(index, x, step, pool)
            x, residual = ops.add_rms_norm(attended, residual, layer.mlp_norm, eps)
            widened = ops.silu_and_mul(layer.gate_up(x))
            x, residual = ops.add_rms_norm(layer.down(widened), residual, next_norm, eps)
        return x

    def _attention(self, index: int, x: Tensor, step: StepTensors, pool: KvPool) -> Tensor:
        config, layer = self.config, self.weights.layers[index]
        keys, values = pool.keys[index], pool.values[index]
        key_scale = None if pool.key_scales is None else pool.key_scales[index]
        value_scale = None if pool.value_scales is None else pool.value_scales[index]
        split = layer.qkv(x).view(x.shape[0], -1, config.head_dim)  # [tokens, heads + 2 * kv_heads, head_dim]
        q, k, v = split.split_with_sizes((config.heads, config.kv_heads, config.kv_heads), 1)
        q = self.ops.rope_and_cache(
            q,
            k,
            v,
            cos=self.cos,
            sin=self.sin,
            positions=step.positions,
            k_cache=keys,
            v_cache=values,
            slots=step.slots,
            k_scale=key_scale,
            v_scale=value_scale,
            q_norm=layer.q_norm,
            k_norm=layer.k_norm,
            norm_eps=config.rms_eps,
        )
        out = self.ops.paged_attention(
            q,
            keys,
            values,
            block_tables=step.block_tables,
            query_start=step.query_start,
            context_lens=step.context_lens,
            scale=self.scale,
            window=config.windows[index],
            k_scale=key_scale,
            v_scale=value_scale,
            scratch=step.scratch,
            queries_max=step.queries_max,
            decodes=step.decodes,
        )
        return layer.attention_output(out.view(x.shape[0], -1))


def _rope_tables(config: ModelConfig, factors: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines, [context_length, head_dim / 2] float32.

    The angles are computed in float64, since a float32 product loses whole turns at large positions; and for a limited
    number of positions at a time, so that a context of a million tokens needs no more memory than its tables.
    """
    frequencies = torch.from_numpy(config.rope.frequencies(config.head_dim))
    if factors is not None:
        frequencies /= factors.double().cpu()
    cos, sin = (torch.empty(config.context_length, len(frequencies), device=device) for _ in range(2))
    for positions in torch.arange(config.context_length, dtype=torch.float64).split(ROPE_POSITIONS):
        angles, start = torch.outer(positions, frequencies), int(positions[0])
        cos[start : start + len(positions)] = angles.cos() * config.rope.attention
        sin[start : start + len(positions)] = angles.sin() * config.rope.attention
    return cos, sin
