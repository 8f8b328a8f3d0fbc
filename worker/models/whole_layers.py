"""The layers of a decoder on a CPU, each in one compiled call (`kernels.cpu_layer`), if all its weights are compiled.

Owns the arrays that the calls take: those of the weights, made once, and those of a step, made once for all layers.
Knows no embedding and no head. What it computes is what `decoder` computes with `CpuOps`.
"""

from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels import cpu_loops
from kernels.cpu import CpuOps
from kernels.cpu_layer import layer
from kernels.ops import Ops
from kernels.vector_code import GROUP, LANES
from worker.models.compiled_linear import CompiledLinear
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder, KvPool, StepTensors
from worker.models.layers import Linear
from worker.models.weights import LayerWeights, Weights

_NONE: NDArray[np.float32] = np.zeros(0, np.float32)


class WholeLayers:
    """Implements `decoder.Layers`."""

    def __init__(self, config: ModelConfig, weights: Weights, cos: Tensor, sin: Tensor) -> None:
        self._config = config
        self._rotation = cos.numpy(), sin.numpy()
        self._eps, self._scale = np.float32(config.rms_eps), np.float32(config.head_dim**-0.5)
        self._first_norm = weights.layers[0].attention_norm.numpy()
        following = [own.attention_norm for own in weights.layers[1:]] + [weights.final_norm]
        self._layers = [_arrays(own, norm) for own, norm in zip(weights.layers, following, strict=True)]
        self._rounds = any(linear.rounds for own in weights.layers for linear in _linears(own) or [])

    def __call__(self, embedded: Tensor, step: StepTensors, pool: KvPool) -> Tensor:
        """The normed rows for the head, [tokens, hidden]. embedded: [tokens, hidden] float32; it is changed."""
        residual = embedded.numpy()
        room = self._room(residual)
        cpu_loops.rms_norm(residual, self._first_norm, self._eps, room[0])
        numbers = self._step(step)
        pools = zip(pool.keys, pool.values, self._config.windows, strict=True)
        for (products, norms, head_norms), (keys, values, window) in zip(self._layers, pools, strict=True):
            layer(products, norms, head_norms, self._eps, keys.numpy(), values.numpy(), window or 0, numbers, room)
        return torch.from_numpy(room[0])

    def _room(self, residual: NDArray[np.float32]) -> tuple[Any, ...]:
        """What `layer` writes into."""
        config, rows = self._config, len(residual)
        x, y = np.empty_like(residual), np.empty_like(residual)
        qkv = np.empty((rows, (config.heads + 2 * config.kv_heads) * config.head_dim), np.float32)
        q, attended = np.empty((2, rows, config.heads, config.head_dim), np.float32)
        gate_up = np.empty((rows, 2 * config.intermediate), np.float32)
        activated = np.empty((rows, config.intermediate), np.float32)
        widest = rows * max(config.hidden, config.heads * config.head_dim, config.intermediate)
        factors = np.empty((2, widest // GROUP), np.float32)
        bits = (np.empty(widest, np.int8), factors[0], factors[1]) if self._rounds else _NONE
        return x, residual, qkv, q, attended, gate_up, activated, y, bits

    def _step(self, step: StepTensors) -> tuple[Any, ...]:
        starts, contexts = step.query_start.numpy(), step.context_lens.numpy()
        counts = np.diff(starts)
        decodes, prompts = np.flatnonzero(counts == 1), np.flatnonzero(counts > 1)
        # KV heads lie side by side: one thread reads them all in one stream, unless others would have nothing to do.
        heads_each = self._config.kv_heads if len(decodes) >= numba.get_num_threads() else 1
        rows = starts[decodes].astype(np.int64)
        return (
            *self._rotation,
            step.positions.numpy(),
            step.slots.numpy(),
            (rows, decodes, step.block_tables.numpy(), contexts, heads_each),
            np.stack([starts[prompts], starts[prompts + 1], prompts]).astype(np.int64),
            self._scale,
        )


def decoder(config: ModelConfig, weights: Weights, ops: Ops) -> Decoder:
    """One that computes whole layers, where operations and weights allow it."""
    made = Decoder(config, weights, ops)
    if isinstance(ops, CpuOps) and _compiled(weights):
        made.layers = WholeLayers(config, weights, made.cos, made.sin)
    return made


def _compiled(weights: Weights) -> bool:
    """Whether `layer` can multiply with all of these."""
    return weights.embedding.dtype == torch.float32 and all(_linears(own) is not None for own in weights.layers)


def _linears(own: LayerWeights) -> list[CompiledLinear] | None:
    """None if not all are compiled, or one's outputs do not fill its tiles."""
    linears: list[Linear] = [own.qkv, own.attention_output, own.gate_up, own.down]
    found = [linear for linear in linears if isinstance(linear, CompiledLinear) and not linear.weight.outputs % LANES]
    return found if len(found) == len(linears) else None


def _arrays(own: LayerWeights, following: Tensor) -> tuple[tuple[Any, ...], ...]:
    """products, norms and head_norms as `layer` takes them."""
    products: list[tuple[Any, ...]] = []
    for linear in _linears(own) or []:
        weight, bias = linear.weight, _NONE if linear.bias is None else linear.bias.numpy()
        products.append((weight.codes, weight.scales, weight.minimums, bias))
    head_norms = tuple(_NONE if norm is None else norm.numpy() for norm in (own.q_norm, own.k_norm))
    return tuple(products), (own.mlp_norm.numpy(), following.numpy()), head_norms
