"""Writes LLVM vectors of 16 lanes inside numba's intrinsics, and says how packed weights lie in memory.

A weight of `[outputs, inputs]` is cut into tiles of 16 outputs, and each tile into groups of 32 inputs that share a
scale (and a minimum). The lanes of a vector are 16 outputs of one input, so that nothing is ever summed across lanes.
The type of the codes says what they are: uint8 is two 4-bit codes a byte (`scale * code + minimum`), int8 is
`scale * code`, uint16 is a bfloat16, float32 is itself. Scales and minimums are float32, or uint16 that are float16:
a step of few rows takes as long as memory needs to bring the weights, and factors are a third of a 4-bit weight.

4-bit codes lie so that they are ready for products of bytes too: a 32-bit word of an output has eight of its inputs,
the first four in the low halves of its bytes and the next four in the high ones.

Knows no rows and no results.
"""

from collections.abc import Iterator
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba.core import cgutils, types

LANES = 16  # one AVX-512 register, two of AVX2, four of NEON
GROUP = 32  # inputs that share a scale, as in GGUF's formats
PART = 8  # inputs of a group that are written out; all 32 are no faster and take four times as long to compile
PARTS = GROUP // PART

_FEATURES = llvmlite.binding.get_host_cpu_features()
HAS_HALVES = bool(_FEATURES.get("f16c", not llvmlite.binding.get_process_triple().startswith("x86")))

INT = ir.IntType(64)
BYTE, SHORT, WORD, FLOAT = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.FloatType()
FLOATS, WORDS = ir.VectorType(FLOAT, LANES), ir.VectorType(WORD, LANES)


class Emitter:
    """Writes one intrinsic's instructions. `arrays`: its arguments, arrays with `data` and `shape`."""

    def __init__(self, context: Any, builder: Any, signature: Any, values: Any) -> None:
        self.builder = builder
        self.arrays = [
            context.make_array(kind)(context, builder, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(signature.args, values, strict=True)
        ]
        self._fma = self.function(f"llvm.fma.v{LANES}f32", FLOATS, [FLOATS] * 3)

    def function(self, name: str, result: Any, arguments: list[Any]) -> Any:
        """One that LLVM knows."""
        return cgutils.get_or_insert_function(self.builder.module, ir.FunctionType(result, arguments), name)

    def size(self, array: Any, axis: int) -> Any:
        return cgutils.unpack_tuple(self.builder, array.shape)[axis]

    def at(self, base: Any, *steps: tuple[Any, Any]) -> Any:
        """The address of `base[sum(index * stride)]`."""
        offset: Any = INT(0)
        for index, stride in steps:
            offset = self.builder.add(offset, self.builder.mul(index, stride))
        return self.builder.gep(base, [offset])

    def load(self, address: Any, element: Any, *, align: int) -> Any:
        vector = ir.VectorType(element, LANES).as_pointer()
        loaded = self.builder.load(self.builder.bitcast(address, vector))
        loaded.align = align
        return loaded

    def store(self, value: Any, address: Any) -> None:
        self.builder.store(value, self.builder.bitcast(address, FLOATS.as_pointer())).align = 4

    def splat(self, scalar: Any) -> Any:
        undefined = ir.Constant(ir.VectorType(scalar.type, LANES), ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, WORD(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(WORDS, [0] * LANES))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """`a * b + c`, rounded once."""
        return self.builder.call(self._fma, [a, b, c])

    def words(self, value: int) -> Any:
        return ir.Constant(WORDS, [value] * LANES)

    def factors(self, kind: Any, scales: Any, minimums: Any, group: Any) -> list[Any]:
        """What a group's codes are multiplied with, and what is added to them, as far as its format has these."""
        present = {types.uint8: (scales, minimums), types.int8: (scales,)}.get(kind, ())
        return [self._factor(array.data, group) for array in present]

    def _factor(self, data: Any, group: Any) -> Any:
        place = self.at(data, (group, INT(LANES)))
        if data.type.pointee == FLOAT:
            return self.load(place, FLOAT, align=4)
        halves = self.builder.bitcast(self.load(place, SHORT, align=2), ir.VectorType(ir.HalfType(), LANES))
        return self.builder.fpext(halves, FLOATS)

    def four_bit_words(self, codes: Any, group: Any, part: Any) -> Any:
        """Eight codes of each output, in the order that this module's docstring gives."""
        place = self.at(codes.data, (group, INT(LANES * GROUP // 2)), (part, INT(LANES * PART // 2)))
        return self.load(place, WORD, align=1)

    def weights(self, kind: Any, codes: Any, factors: list[Any], group: Any, part: Any) -> Iterator[Any]:
        """The vectors of one part of a group, whose number counts over all tiles."""
        builder = self.builder
        if kind == types.uint8:
            words = self.four_bit_words(codes, group, part)
            for shift in (0, 8, 16, 24, 4, 12, 20, 28):
                code = builder.and_(builder.lshr(words, self.words(shift)), self.words(15))
                yield self.fma(builder.sitofp(code, FLOATS), *factors)
            return
        element = {types.int8: BYTE, types.uint16: SHORT, types.float32: FLOAT}[kind]
        for number in range(PART):
            place = self.at(
                codes.data, (group, INT(LANES * GROUP)), (part, INT(LANES * PART)), (INT(number), INT(LANES))
            )
            code = self.load(place, element, align=kind.bitwidth // 8)
            if kind == types.int8:
                yield builder.fmul(builder.sitofp(builder.sext(code, WORDS), FLOATS), *factors)
            elif kind == types.uint16:
                wide = builder.shl(builder.zext(code, WORDS), self.words(16))
                yield builder.bitcast(wide, FLOATS)
            else:
                yield code
