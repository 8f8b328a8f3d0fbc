"""The layers of a decoder on a CPU in one compiled call a step (`kernels.cpu_layers`), if all its weights are compiled.

Owns the arrays that the call takes: where those of the weights lie, noted once, and those of a step, made once for all
layers. What it computes is what `decoder` computes with `CpuOps`. The head is a call of its own, by the same threads.
"""

from dataclasses import replace
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu import CpuOps
from kernels.cpu_layers import ADDRESSES, PHASES, PHASES_PROMPT, SHARES, layers, project
from kernels.crew import Crew
from kernels.ops import Ops
from kernels.packed_weight import fresh
from kernels.shared_work import ITEMS_WON_MAX, ledger
from kernels.vector_code import GROUP, LANES
from worker.models.compiled_linear import CompiledLinear
from worker.models.config import ModelConfig
from worker.models.decoder import Decoder, KvPool, StepTensors
from worker.models.layers import Linear
from worker.models.weights import LayerWeights, Weights

Arrays = list[NDArray[Any]]
_NONE: NDArray[np.float32] = np.zeros(0, np.float32)


class WholeLayers:
    """Implements `decoder.Layers`."""

    def __init__(self, config: ModelConfig, weights: Weights, cos: Tensor, sin: Tensor, crew: Crew) -> None:
        self._config, self._crew, self._threads = config, crew, numba.get_num_threads()
        self._rotation = cos.numpy(), sin.numpy()
        self._eps, self._scale = np.float32(config.rms_eps), np.float32(config.head_dim**-0.5)
        self._first_norm = weights.layers[0].attention_norm.numpy()
        self._arrays = _arrays_of_layers(weights)
        self._addresses = np.zeros((config.layers, ADDRESSES), np.int64)
        for own, arrays in zip(self._addresses, self._arrays, strict=True):
            own[: len(arrays)] = [array.ctypes.data for array in arrays]
        self._windows = np.array([window or 0 for window in config.windows], np.int64)
        self._rounds = any(linear.rounds for own in weights.layers for linear in _linears(own) or [])

    def __call__(self, embedded: Tensor, step: StepTensors, pool: KvPool) -> Tensor:
        """The normed rows for the head, [tokens, hidden]. embedded: [tokens, hidden] float32; it is changed."""
        self._addresses[:, -2] = [keys.data_ptr() for keys in pool.keys]
        self._addresses[:, -1] = [values.data_ptr() for values in pool.values]
        first = self._arrays[0]
        likes = (*(tuple(first[at : at + 4]) for at in range(0, 16, 4)), first[16], first[18], pool.keys[0].numpy())
        numbers = self._step(step)
        prompts = numbers[5]
        room = self._room(embedded.numpy(), prompts, step)
        phases = 1 + len(self._arrays) * (PHASES + PHASES_PROMPT * prompts.shape[1])
        self._crew.call(
            layers,
            likes,
            self._addresses,
            self._windows,
            self._first_norm,
            self._eps,
            self._threads * SHARES,
            numbers,
            room,
            ledger(phases),
        )
        return torch.from_numpy(room[0])

    def _room(self, embedded: NDArray[np.float32], prompts: NDArray[np.int64], step: StepTensors) -> tuple[Any, ...]:
        """What `layers` writes into."""
        config, rows = self._config, len(embedded)
        attention = config.heads * config.head_dim
        x, residual = np.empty_like(embedded), np.zeros_like(embedded)
        qkv = np.empty((rows, attention + 2 * config.kv_heads * config.head_dim), np.float32)
        q, attended = np.empty((2, rows, config.heads, config.head_dim), np.float32)
        gate_up = np.empty((rows, 2 * config.intermediate), np.float32)
        activated = np.empty((rows, config.intermediate), np.float32)
        bits = [self._bits(rows, inputs) for inputs in (config.hidden, attention, config.intermediate)]
        longest = int(step.context_lens.numpy()[prompts[2]].max(initial=0))
        return x, residual, qkv, q, attended, gate_up, activated, embedded, self._tiles(longest), *bits

    def _bits(self, rows: int, inputs: int) -> Any:
        if not self._rounds:
            return _NONE
        scales, sums = np.empty((2, rows, inputs // GROUP), np.float32)
        return np.empty((rows, inputs), np.int8), scales, sums

    def _tiles(self, context: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """For a prompt's keys and values, as `prompt_attention` lays them out."""
        heads, groups = self._config.kv_heads, -(-context // GROUP)
        shape = (GROUP, LANES)
        keys = np.empty((heads, groups * GROUP // LANES, -(-self._config.head_dim // GROUP), *shape), np.float32)
        return keys, np.empty((heads, -(-self._config.head_dim // LANES), groups, *shape), np.float32)

    def _step(self, step: StepTensors) -> tuple[Any, ...]:
        # By what a token is, not by how many there are: the two ways add in different orders, and a cached prefix that
        # leaves one token of a prompt must not change it.
        starts, contexts = step.query_start.numpy(), step.context_lens.numpy()
        decodes, prompts = np.arange(step.decodes), np.arange(step.decodes, len(contexts))
        # KV heads lie side by side: one thread reads them all in one stream, unless others would have nothing to do.
        heads_each = self._config.kv_heads if len(decodes) >= self._threads else 1
        rows = starts[decodes].astype(np.int64)
        return (
            *self._rotation,
            step.positions.numpy(),
            step.slots.numpy(),
            (rows, decodes, step.block_tables.numpy(), contexts, heads_each),
            np.stack([starts[prompts], starts[prompts + 1], prompts]).astype(np.int64),
            self._scale,
        )


class SharedLinear:
    """Implements `layers.Linear`, for activations that are not rounded."""

    def __init__(self, linear: CompiledLinear, crew: Crew) -> None:
        self.nbytes, self._outputs, self._crew = linear.nbytes, linear.weight.outputs, crew
        self._arrays = _arrays_of_linear(linear)
        self._addresses = np.array([array.ctypes.data for array in self._arrays], np.int64)

    def __call__(self, x: Tensor) -> Tensor:
        out, array = fresh((len(x), self._outputs))
        self._crew.call(
            project, x.numpy(), _NONE, self._arrays, self._addresses, array, ITEMS_WON_MAX, ledger(1), np.int64(0)
        )
        return out


def decoder(config: ModelConfig, weights: Weights, ops: Ops) -> Decoder:
    """One that computes whole layers, where operations and weights allow it."""
    if not (isinstance(ops, CpuOps) and _compiled(weights)):
        return Decoder(config, weights, ops)
    crew = Crew(numba.get_num_threads() - 1)
    head = weights.head
    if isinstance(head, CompiledLinear) and not head.rounds and _fills_tiles(head):
        head = SharedLinear(head, crew)
    made = Decoder(config, replace(weights, head=head), ops)
    made.layers = WholeLayers(config, weights, made.cos, made.sin, crew)
    return made


def _compiled(weights: Weights) -> bool:
    """Whether `layers` can multiply with all of these: layers are alike."""
    if weights.embedding.dtype != torch.float32 or any(_linears(own) is None for own in weights.layers):
        return False
    kinds = [[(array.shape, array.dtype) for array in arrays] for arrays in _arrays_of_layers(weights)]
    return all(kind == kinds[0] for kind in kinds)


def _linears(own: LayerWeights) -> list[CompiledLinear] | None:
    """None if not all are compiled, or one's outputs do not fill its tiles."""
    linears: list[Linear] = [own.qkv, own.attention_output, own.gate_up, own.down]
    found = [linear for linear in linears if isinstance(linear, CompiledLinear) and _fills_tiles(linear)]
    return found if len(found) == len(linears) else None


def _fills_tiles(linear: CompiledLinear) -> bool:
    return not linear.weight.outputs % LANES


def _arrays_of_linear(linear: CompiledLinear) -> tuple[NDArray[Any], ...]:
    weight, bias = linear.weight, _NONE if linear.bias is None else linear.bias.numpy()
    return weight.codes, weight.scales, weight.minimums, bias


def _arrays_of_layers(weights: Weights) -> list[Arrays]:
    """All that `layers` reads of each layer, in the order of its addresses, but for keys and values."""
    following = [own.attention_norm for own in weights.layers[1:]] + [weights.final_norm]
    return [_arrays(own, norm) for own, norm in zip(weights.layers, following, strict=True)]


def _arrays(own: LayerWeights, following: Tensor) -> Arrays:
    found: Arrays = []
    for linear in _linears(own) or []:
        found += _arrays_of_linear(linear)
    norms = own.mlp_norm, following, own.q_norm, own.k_norm
    return found + [_NONE if norm is None else norm.numpy() for norm in norms]
