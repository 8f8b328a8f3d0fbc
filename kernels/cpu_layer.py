"""One layer of a decoder on a CPU in one compiled call: all of its small operations and its products, over arrays.

Called one by one from Python, the operations of a layer cost more than what they compute when a step has few rows: an
array as torch and as numpy see it takes a microsecond to make, and a layer takes some thirty of them. Here a step makes
its arrays once, and every layer writes into the same.

Owns the order of a layer's operations for arrays, as `worker.models.decoder` does for tensors. The operations are those
of `cpu_loops`, `prompt_attention`, `packed_matmul` and `rounded_matmul`. Knows no torch. Everything is float32.
"""

from typing import Any

import numpy as np
from numba import njit, prange
from numba.core import types
from numba.extending import overload

from kernels.cpu_loops import FAST, ROWS_SERIAL, add_rms_norm, decode_attention, norm_row, rope_row, silu_and_mul
from kernels.packed_matmul import ROWS_FEW, multiply_few, multiply_many
from kernels.prompt_attention import prompt_attention
from kernels.rounded_matmul import multiply, round_rows
from kernels.vector_code import GROUP


def _project(x: Any, weight: Any, room: Any, out: Any) -> None:
    """Out = x @ weight.T + bias. weight: (codes, scales, minimums, bias); room: for x in 8 bits, if it is rounded."""
    raise NotImplementedError("compiled code alone calls this")


@overload(_project)
def _choose(x: Any, weight: Any, room: Any, out: Any) -> Any:  # noqa: ARG001  # pyright: ignore[reportUnusedFunction]
    rounds = isinstance(room, types.BaseTuple) and weight.types[0].dtype == types.uint8

    def rounded(x: Any, weight: Any, room: Any, out: Any) -> None:
        rows, inputs = x.shape
        groups = inputs // GROUP
        q = room[0][: rows * inputs].reshape(rows, inputs)
        scales = room[1][: rows * groups].reshape(rows, groups)
        sums = room[2][: rows * groups].reshape(rows, groups)
        round_rows(x, x.view(np.int32), q, scales, sums)
        multiply(q, scales, sums, weight[0], weight[1], weight[2], out)
        _add_bias(out, weight[3])

    def exact(x: Any, weight: Any, room: Any, out: Any) -> None:  # noqa: ARG001  numba asks for the same names
        if x.shape[0] <= ROWS_FEW:
            multiply_few(x, weight[0], weight[1], weight[2], out)
        else:
            multiply_many(x, weight[0], weight[1], weight[2], out)
        _add_bias(out, weight[3])

    return rounded if rounds else exact


@njit(nogil=True, cache=True)
def _add_bias(out: Any, bias: Any) -> None:
    """A bias of no numbers is none."""
    if bias.shape[0]:
        for row in range(out.shape[0]):
            for i in range(out.shape[1]):
                out[row, i] += bias[i]


@njit(nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _turn(qkv: Any, norms: Any, eps: Any, cos: Any, sin: Any, keys: Any, values: Any, slot: Any, out: Any) -> None:
    """One row: its heads normed where there are norms, q and k rotated, k and v written to the pool."""
    heads, kv_heads = out.shape[0], keys.shape[2]
    if norms[0].shape[0]:
        for head in range(heads):
            norm_row(qkv[head], norms[0], eps, qkv[head])
        for head in range(heads, heads + kv_heads):
            norm_row(qkv[head], norms[1], eps, qkv[head])
    rope_row(qkv[:heads], qkv[heads : heads + kv_heads], qkv[heads + kv_heads :], cos, sin, keys, values, slot, out)


@njit(parallel=True, nogil=True, cache=True, fastmath=FAST, error_model="numpy")
def _turn_all(
    qkv: Any, norms: Any, eps: Any, cos: Any, sin: Any, positions: Any, keys: Any, values: Any, slots: Any, out: Any
) -> None:
    if out.shape[0] < ROWS_SERIAL:
        for row in range(out.shape[0]):
            place = positions[row]
            _turn(qkv[row], norms, eps, cos[place], sin[place], keys, values, slots[row], out[row])
    else:
        for row in prange(out.shape[0]):
            place = positions[row]
            _turn(qkv[row], norms, eps, cos[place], sin[place], keys, values, slots[row], out[row])


@njit(nogil=True, cache=True)
def layer(
    products: Any, norms: Any, head_norms: Any, eps: Any, keys: Any, values: Any, window: int, step: Any, room: Any
) -> None:
    """From the normed x of this layer to that of the next, in place, and the residual with it.

    products: of qkv, the attention's output, gate and up, and down; norms: of the MLP, and of the next layer's
    attention. step: (cos, sin, positions, slots, decodes, prompts, scale); decodes: as `decode_attention` takes them,
    prompts: [3, prompts] first row, end and sequence. room: as named below; the last is for x in 8 bits, if wanted.
    """
    x, residual, qkv, q, attended, gate_up, activated, y, bits = room
    cos, sin, positions, slots, decodes, prompts, scale = step
    rows, sequences, tables, contexts, heads_each = decodes
    _project(x, products[0], bits, qkv)
    heads = qkv.reshape(qkv.shape[0], qkv.shape[1] // q.shape[2], q.shape[2])
    _turn_all(heads, head_norms, eps, cos, sin, positions, keys, values, slots, q)
    for prompt in range(prompts.shape[1]):
        first, end, sequence = prompts[0, prompt], prompts[1, prompt], prompts[2, prompt]
        prompt_attention(
            q[first:end],
            keys,
            values,
            tables[sequence],
            int(contexts[sequence]),
            window,
            scale,
            attended[first:end],
        )
    if rows.shape[0]:
        decode_attention(q, keys, values, rows, sequences, tables, contexts, window, heads_each, scale, attended)
    _project(attended.reshape(attended.shape[0], q.shape[1] * q.shape[2]), products[1], bits, y)
    add_rms_norm(y, residual, norms[0], eps, x)
    _project(x, products[2], bits, gate_up)
    silu_and_mul(gate_up, activated)
    _project(activated, products[3], bits, y)
    add_rms_norm(y, residual, norms[1], eps, x)
