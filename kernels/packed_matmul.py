"""Matrix products with weights kept in 4, 8 or 16 bits and float32 activations, compiled for this processor by LLVM.

A weight of `[outputs, inputs]` is cut into tiles of 16 outputs, and each tile into groups of 32 inputs that share a
scale (and a minimum). The lanes of a vector are 16 outputs of one input, so that nothing is ever summed across lanes.
The type of the codes says what they are: uint8 is two 4-bit codes a byte (`scale * code + minimum`), int8 is
`scale * code`, uint16 is a bfloat16, float32 is itself.

Invariant: an output is one chain of fused multiply-adds over the inputs in their order, whatever the number of rows,
so a row gives bitwise the same result alone and in any company.

Measured on 2 cores with AVX2 for the demo model, milliseconds a step of 1, 4 and 16 rows: 4-bit codes 12, 19 and 67,
oneDNN's packed float32 58, 89 and 142.
"""

from collections.abc import Iterator
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

LANES = 16  # one AVX-512 register, two of AVX2, four of NEON
GROUP = 32  # inputs that share a scale, as in GGUF's formats
UNROLLED = 8  # inputs of a group that are written out; all 32 are no faster and take four times as long to compile
ROWS_FEW = 4  # up to here a tile is decoded in registers; above, once into a panel that all rows use
ROWS_WIDE = 12 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 6  # accumulators fill the registers

_INT = ir.IntType(64)
_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)


class _Emitter:
    """Writes one intrinsic's instructions."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        self.builder = builder
        self.arrays = [
            context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]
        self.fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_VECTOR, [_VECTOR] * 3), f"llvm.fma.v{LANES}f32"
        )

    def size(self, array: Any, axis: int) -> Any:
        return cgutils.unpack_tuple(self.builder, array.shape)[axis]

    def at(self, base: Any, *steps: tuple[Any, Any]) -> Any:
        """The address of `base[sum(index * stride)]`."""
        offset: Any = _INT(0)
        for index, stride in steps:
            offset = self.builder.add(offset, self.builder.mul(index, stride))
        return self.builder.gep(base, [offset])

    def load(self, address: Any, element: Any, *, align: int) -> Any:
        vector = ir.VectorType(element, LANES).as_pointer()
        loaded = self.builder.load(self.builder.bitcast(address, vector))
        loaded.align = align
        return loaded

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.bitcast(address, _VECTOR.as_pointer())).align = 4

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(_VECTOR, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.IntType(32)(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(_WORDS, [0] * LANES))

    def factors(self, kind: Any, scales: Any, minimums: Any, group: Any) -> list[Any]:
        """What a group's codes are multiplied with, and what is added to them, as far as its format has these."""
        present = {types.uint8: (scales, minimums), types.int8: (scales,)}.get(kind, ())
        return [self.load(self.at(array.data, (group, _INT(LANES))), _FLOAT, align=4) for array in present]

    def weights(self, kind: Any, codes: Any, factors: list[Any], group: Any, part: Any) -> Iterator[Any]:
        """The vectors of one part of a group, whose number counts over all tiles."""
        builder, byte = self.builder, ir.IntType(8)
        if kind == types.uint8:
            low, four = (ir.Constant(ir.VectorType(byte, LANES), [value] * LANES) for value in (15, 4))
            for pair in range(UNROLLED // 2):
                place = self.at(
                    codes.data,
                    (group, _INT(LANES * GROUP // 2)),
                    (part, _INT(LANES * UNROLLED // 2)),
                    (_INT(pair), _INT(LANES)),
                )
                both = self.load(place, byte, align=1)
                for code in (builder.and_(both, low), builder.lshr(both, four)):
                    yield builder.call(self.fma, [builder.sitofp(builder.zext(code, _WORDS), _VECTOR), *factors])
            return
        element = {types.int8: byte, types.uint16: ir.IntType(16), types.float32: _FLOAT}[kind]
        for number in range(UNROLLED):
            place = self.at(
                codes.data,
                (group, _INT(LANES * GROUP)),
                (part, _INT(LANES * UNROLLED)),
                (_INT(number), _INT(LANES)),
            )
            code = self.load(place, element, align=kind.bitwidth // 8)
            if kind == types.int8:
                yield builder.fmul(builder.sitofp(builder.sext(code, _WORDS), _VECTOR), *factors)
            elif kind == types.uint16:
                wide = builder.shl(builder.zext(code, _WORDS), ir.Constant(_WORDS, [16] * LANES))
                yield builder.bitcast(wide, _VECTOR)
            else:
                yield code


def _multiply(rows: int) -> Any:
    """`rows` rows of x times the tile `source` of the weight, into `out` from (row, tile) on."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit = _Emitter(context, builder, signature, values)
        x, codes, scales, minimums, out, source, tile, row = emit.arrays
        inputs, outputs, groups = emit.size(x, 1), emit.size(out, 1), emit.size(codes, 1)
        kind = signature.args[1].dtype
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(rows)]
        with cgutils.for_range(builder, groups) as loop:
            group = builder.add(builder.mul(source, groups), loop.index)
            factors = emit.factors(kind, scales, minimums, group)
            with cgutils.for_range(builder, _INT(GROUP // UNROLLED)) as inner:
                start = builder.add(builder.mul(loop.index, _INT(GROUP)), builder.mul(inner.index, _INT(UNROLLED)))
                for number, vector in enumerate(emit.weights(kind, codes, factors, group, inner.index)):
                    column = builder.add(start, _INT(number))
                    for r, total in enumerate(sums):
                        value = builder.load(emit.at(x.data, (builder.add(row, _INT(r)), inputs), (column, _INT(1))))
                        added = builder.call(emit.fma, [vector, emit.splat(value), builder.load(total)])
                        builder.store(added, total)
        for r, total in enumerate(sums):
            place = emit.at(out.data, (builder.add(row, _INT(r)), outputs), (tile, _INT(LANES)))
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
        emit = _Emitter(context, builder, signature, values)
        codes, scales, minimums, tile, panel = emit.arrays
        groups, kind = emit.size(codes, 1), signature.args[0].dtype
        with cgutils.for_range(builder, groups) as loop:
            group = builder.add(builder.mul(tile, groups), loop.index)
            factors = emit.factors(kind, scales, minimums, group)
            with cgutils.for_range(builder, _INT(GROUP // UNROLLED)) as inner:
                start = emit.at(panel.data, (loop.index, _INT(GROUP * LANES)), (inner.index, _INT(UNROLLED * LANES)))
                for number, vector in enumerate(emit.weights(kind, codes, factors, group, inner.index)):
                    emit.store(vector, emit.at(start, (_INT(number), _INT(LANES))))
        return context.get_dummy_value()

    return types.void(codes, scales, minimums, tile, panel), generate


_decode: Any = intrinsic(_emit_decode)

_one, _two, _three, _four, _wide = (_multiply(rows) for rows in (1, 2, 3, 4, ROWS_WIDE))


@njit(nogil=True, cache=True)
def _few(
    x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any, source: int, tile: int, row: int
) -> None:
    """The last rows of x, at most ROWS_FEW."""
    rows = x.shape[0] - row
    if rows == 1:
        _one(x, codes, scales, minimums, out, source, tile, row)
    elif rows == 2:
        _two(x, codes, scales, minimums, out, source, tile, row)
    elif rows == 3:
        _three(x, codes, scales, minimums, out, source, tile, row)
    elif rows == 4:
        _four(x, codes, scales, minimums, out, source, tile, row)


@njit(parallel=True, nogil=True, cache=True)
def multiply_few(x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any) -> None:
    """At most ROWS_FEW rows."""
    for tile in prange(codes.shape[0]):
        _few(x, codes, scales, minimums, out, tile, tile, 0)


@njit(parallel=True, nogil=True, cache=True)
def multiply_many(x: NDArray[Any], codes: NDArray[Any], scales: Any, minimums: Any, out: Any) -> None:
    for tile in prange(codes.shape[0]):
        panel = np.empty((1, codes.shape[1], GROUP, LANES), np.float32)
        _decode(codes, scales, minimums, tile, panel)
        row = 0
        while row + ROWS_WIDE <= x.shape[0]:
            _wide(x, panel, scales, minimums, out, 0, tile, row)
            row += ROWS_WIDE
        while row + ROWS_FEW <= x.shape[0]:
            _four(x, panel, scales, minimums, out, 0, tile, row)
            row += ROWS_FEW
        _few(x, panel, scales, minimums, out, 0, tile, row)
