"""Matrix products with weights kept in 4, 8 or 16 bits and float32 activations, compiled for this processor by LLVM.

How the weights lie in memory is said in `vector_code`.

Invariant: an output is one chain of fused multiply-adds over the inputs in their order, whatever the number of rows,
so a row gives bitwise the same result alone and in any company.

Measured on 2 cores with AVX2 for the demo model, milliseconds a step of 1, 4 and 16 rows: 4-bit codes 12, 19 and 67,
oneDNN's packed float32 58, 89 and 142.
"""

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from kernels.vector_code import FLOATS, GROUP, INT, LANES, PART, PARTS, Emitter

ROWS_FEW = 4  # up to here a tile is decoded in registers; above, once into a panel that all rows use
ROWS_WIDE = 12 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 6  # accumulators fill the registers


def _multiply(rows: int) -> Any:
    """`rows` rows of x times the tile `source` of the weight, into `out` from (row, tile) on."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit = Emitter(context, builder, signature, values)
        x, codes, scales, minimums, out, source, tile, row = emit.arrays
        inputs, outputs = emit.size(x, 1), emit.size(out, 1)
        first = builder.mul(source, emit.size(codes, 1))
        kind = signature.args[1].dtype
        zero = ir.Constant(FLOATS, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows)]
        with cgutils.for_range(builder, builder.udiv(inputs, INT(GROUP))) as loop:
            group = builder.add(first, loop.index)
            factors = emit.factors(kind, scales, minimums, group)
            with cgutils.for_range(builder, INT(PARTS)) as inner:
                start = builder.add(builder.mul(loop.index, INT(GROUP)), builder.mul(inner.index, INT(PART)))
                for number, vector in enumerate(emit.weights(kind, codes, factors, group, inner.index)):
                    column = builder.add(start, INT(number))
                    for r, total in enumerate(sums):
                        value = builder.load(emit.at(x.data, (builder.add(row, INT(r)), inputs), (column, INT(1))))
                        added = emit.fma(vector, emit.splat(value), builder.load(total))
                        builder.store(added, total)
        for r, total in enumerate(sums):
            place = emit.at(out.data, (builder.add(row, INT(r)), outputs), (tile, INT(LANES)))
            emit.store(builder.load(total), place)
        return context.get_dummy_value()

    def multiply(
        _typing: Any, x: Any, codes: Any, scales: Any, minimums: Any, out: Any, source: Any, tile: Any, row: Any
    ) -> Any:
        return types.void(x, codes, scales, minimums, out, source, tile, row), generate

    return intrinsic(multiply)


def _emit_decode(_typing: Any, codes: Any, scales: Any, minimums: Any, tile: Any, panel: Any) -> Any:
    """One tile's weights as float32 into `panel`, [1, groups, 32, 16]."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit = Emitter(context, builder, signature, values)
        codes, scales, minimums, tile, panel = emit.arrays
        groups, kind = emit.size(codes, 1), signature.args[0].dtype
        with cgutils.for_range(builder, groups) as loop:
            group = builder.add(builder.mul(tile, groups), loop.index)
            factors = emit.factors(kind, scales, minimums, group)
            with cgutils.for_range(builder, INT(PARTS)) as inner:
                start = emit.at(panel.data, (loop.index, INT(GROUP * LANES)), (inner.index, INT(PART * LANES)))
                for number, vector in enumerate(emit.weights(kind, codes, factors, group, inner.index)):
                    emit.store(vector, emit.at(start, (INT(number), INT(LANES))))
        return context.get_dummy_value()

    return types.void(codes, scales, minimums, tile, panel), generate


_decode: Any = intrinsic(_emit_decode)

_one, _two, _three, _four, _wide = (_multiply(rows) for rows in (1, 2, 3, 4, ROWS_WIDE))


@njit(nogil=True, cache=True)
def few_rows(x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any, tile: Any) -> None:
    rows = x.shape[0]
    if rows == 1:
        _one(x, codes, scales, minimums, out, tile, tile, 0)
    elif rows == 2:
        _two(x, codes, scales, minimums, out, tile, tile, 0)
    elif rows == 3:
        _three(x, codes, scales, minimums, out, tile, tile, 0)
    elif rows == 4:
        _four(x, codes, scales, minimums, out, tile, tile, 0)


@njit(parallel=True, nogil=True, cache=True)
def multiply_few(x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any) -> None:
    """At most ROWS_FEW rows."""
    for tile in prange(codes.shape[0]):
        few_rows(x, codes, scales, minimums, out, np.int64(tile))


@njit(nogil=True, cache=True)
def all_wide(x: NDArray[Any], panel: NDArray[Any], out: Any, source: int, tile: Any) -> None:
    """x: a multiple of ROWS_WIDE rows, and at most as many inputs as the tile `source` of the panel has."""
    for row in range(0, x.shape[0], ROWS_WIDE):
        _wide(x, panel, x, x, out, source, tile, row)


@njit(nogil=True, cache=True)
def many_rows(x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any, tile: Any) -> None:
    panel = np.empty((1, codes.shape[1], GROUP, LANES), np.float32)
    _decode(codes, scales, minimums, tile, panel)
    row, rows = 0, x.shape[0]
    while row < rows:  # one loop, so that each product is written, and compiled, once
        if row + ROWS_WIDE <= rows:
            _wide(x, panel, x, x, out, 0, tile, row)
            row += ROWS_WIDE
        elif row + 4 <= rows:
            _four(x, panel, x, x, out, 0, tile, row)
            row += 4
        elif row + 2 <= rows:
            _two(x, panel, x, x, out, 0, tile, row)
            row += 2
        else:
            _one(x, panel, x, x, out, 0, tile, row)
            row += 1


@njit(parallel=True, nogil=True, cache=True)
def multiply_many(x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any) -> None:
    for tile in prange(codes.shape[0]):
        many_rows(x, codes, scales, minimums, out, np.int64(tile))
