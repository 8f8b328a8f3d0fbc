"""Matrix products of 4-bit weights with activations rounded to 8 bits, in whole numbers, compiled by LLVM.

    q[m, k] = round(x[m, k] / scale[m, group])       scale[m, group] = max |x[m, group]| / 127
    y[m, n] = sum over groups of  weight_scale[n, group] * scale[m, group] * sum over k of q[m, k] * code[n, k]
                                + minimum[n, group] * scale[m, group] * sum over k of q[m, k]

A group is 32 inputs, for a row of x as for the weight, so a loud input spoils the precision of 31 others and of no
other row. Two instructions multiply and add 32 bytes, where `packed_matmul` takes four for as many floats, and a code
need not be converted. How the weights lie in memory is said in `vector_code`.

Invariant: the sums of a group are exact, and an output is one chain of fused multiply-adds over the groups in their
order, whatever the number of rows, so a row gives bitwise the same result alone and in any company. A group with NaN
or infinity makes its row NaN.
"""

from itertools import chain
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit, prange
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from kernels.vector_code import BYTE, FLOAT, FLOATS, GROUP, INT, LANES, PART, PARTS, WORD, WORDS, Emitter

ROWS = 4  # at a time: their sums fill the registers
LEVELS = np.float32(127.0)
LEAST = np.float32(1e-30)  # below, a group counts as zeros: its scale would have no inverse
HAS_PAIRS = bool(llvmlite.binding.get_host_cpu_features().get("avx2"))

_HALF = LANES // 2
_SHORTS = ir.VectorType(ir.IntType(16), LANES)
_BYTES = ir.VectorType(BYTE, 2 * LANES)
_HALVES = [ir.Constant(ir.VectorType(WORD, _HALF), list(range(at, at + _HALF))) for at in (0, _HALF)]
_BOTH = ir.Constant(WORDS, list(range(LANES)))


class PairDots:
    """Sums of products of four codes and four bytes of x, by AVX2: pairs are added in 16 bits, which hold a whole
    group of 4-bit codes (16 * 15 * 127), and then the pairs.
    """

    def __init__(self, emit: Emitter) -> None:
        self._builder = emit.builder
        self._pairs = emit.function("llvm.x86.avx2.pmadd.ub.sw", _SHORTS, [_BYTES, _BYTES])
        self._total = emit.function("llvm.x86.avx2.pmadd.wd", ir.VectorType(WORD, _HALF), [_SHORTS, _SHORTS])

    def start(self) -> Any:
        return [ir.Constant(_SHORTS, [0] * LANES)] * 2

    def add(self, sums: Any, codes: Any, x: Any) -> Any:
        """codes, x: [16] words of four."""
        builder, products = self._builder, []
        for half in _HALVES:
            bytes_of = [builder.bitcast(builder.shuffle_vector(words, words, half), _BYTES) for words in (codes, x)]
            products.append(builder.call(self._pairs, bytes_of))
        return [builder.add(total, product) for total, product in zip(sums, products, strict=True)]

    def finish(self, sums: Any) -> Any:
        """[16] words."""
        ones = ir.Constant(_SHORTS, [1] * LANES)
        totals = [self._builder.call(self._total, [pairs, ones]) for pairs in sums]
        return self._builder.shuffle_vector(*totals, _BOTH)


class WordDots:
    """The same on any processor."""

    def __init__(self, emit: Emitter) -> None:
        self._builder, self._words = emit.builder, emit.words

    def start(self) -> Any:
        return [self._words(0)]

    def add(self, sums: Any, codes: Any, x: Any) -> Any:
        builder, words = self._builder, self._words
        for shift in (0, 8, 16, 24):
            code = builder.and_(builder.lshr(codes, words(shift)), words(15))
            value = builder.ashr(builder.shl(x, words(24 - shift)), words(24))
            sums = [builder.add(sums[0], builder.mul(code, value))]
        return sums

    def finish(self, sums: Any) -> Any:
        return sums[0]


def product(rows: int, dots: type[PairDots] | type[WordDots]) -> Any:
    """`rows` rows of x times one tile of the weight, into `out` from (row, tile) on.

    LLVM cannot write the loop over parts out, since its count comes from memory: it would decode all parts first and
    keep them on the stack while one row after the other takes them, at two thirds of the speed for several rows.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        emit = Emitter(context, builder, signature, values)
        q, x_scales, x_sums, codes, scales, minimums, out, tile, row = emit.arrays
        groups, inputs, outputs = emit.size(codes, 1), emit.size(q, 1), emit.size(out, 1)
        dot = dots(emit)
        numbers = [builder.add(row, INT(r)) for r in range(rows)]
        totals = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, [0.0] * LANES)) for _ in range(rows)]
        with cgutils.for_range(builder, groups) as loop:
            group = builder.add(builder.mul(tile, groups), loop.index)
            factors, offsets = emit.factors(types.uint8, scales, minimums, group)
            sums = [[cgutils.alloca_once_value(builder, zero) for zero in dot.start()] for _ in range(rows)]
            for zero, place in zip(dot.start() * rows, chain.from_iterable(sums), strict=True):
                builder.store(zero, place)
            with cgutils.for_range(builder, INT(PARTS) if rows == 1 else emit.size(codes, 2)) as inner:
                words = emit.four_bit_words(codes, group, inner.index)
                for half, shift in enumerate((0, 4)):
                    four = builder.and_(builder.lshr(words, emit.words(shift)), emit.words(0x0F0F0F0F))
                    for number, places in zip(numbers, sums, strict=True):
                        place = emit.at(
                            q.data,
                            (number, inputs),
                            (loop.index, INT(GROUP)),
                            (inner.index, INT(PART)),
                            (INT(half), INT(PART // 2)),
                        )
                        word = builder.load(builder.bitcast(place, WORD.as_pointer()))
                        word.align = 1
                        added = dot.add([builder.load(place) for place in places], four, emit.splat(word))
                        for value, place in zip(added, places, strict=True):
                            builder.store(value, place)
            for number, found, total in zip(numbers, sums, totals, strict=True):
                own, whole = (
                    emit.splat(builder.load(emit.at(array.data, (number, groups), (loop.index, INT(1)))))
                    for array in (x_scales, x_sums)
                )
                value = builder.sitofp(dot.finish([builder.load(place) for place in found]), FLOATS)
                added = emit.fma(value, builder.fmul(factors, own), builder.load(total))
                builder.store(emit.fma(offsets, whole, added), total)
        for number, total in zip(numbers, totals, strict=True):
            emit.store(builder.load(total), emit.at(out.data, (number, outputs), (tile, INT(LANES))))
        return context.get_dummy_value()

    def multiply(
        _typing: Any,
        q: Any,
        own: Any,
        whole: Any,
        codes: Any,
        scales: Any,
        minimums: Any,
        out: Any,
        tile: Any,
        row: Any,
    ) -> Any:
        return types.void(q, own, whole, codes, scales, minimums, out, tile, row), generate

    return intrinsic(multiply)


_one, _two, _three, _four = (product(rows, PairDots if HAS_PAIRS else WordDots) for rows in (1, 2, 3, ROWS))


@njit(nogil=True, cache=True)
def all_rows(
    q: NDArray[np.int8],
    x_scales: Any,
    x_sums: Any,
    codes: NDArray[np.uint8],
    scales: Any,
    minimums: Any,
    out: Any,
    tile: Any,
) -> None:
    """One tile of the product."""
    row, rows = 0, q.shape[0]
    while row < rows:
        left = rows - row
        if left >= 4:
            _four(q, x_scales, x_sums, codes, scales, minimums, out, tile, row)
            row += 4
        elif left == 3:
            _three(q, x_scales, x_sums, codes, scales, minimums, out, tile, row)
            row += 3
        elif left == 2:
            _two(q, x_scales, x_sums, codes, scales, minimums, out, tile, row)
            row += 2
        else:
            _one(q, x_scales, x_sums, codes, scales, minimums, out, tile, row)
            row += 1


@njit(parallel=True, nogil=True, cache=True)
def multiply(
    q: NDArray[np.int8], x_scales: Any, x_sums: Any, codes: NDArray[np.uint8], scales: Any, minimums: Any, out: Any
) -> None:
    for tile in prange(codes.shape[0]):
        all_rows(q, x_scales, x_sums, codes, scales, minimums, out, np.int64(tile))


def _same_bits(result: Any, given: Any, kind: Any) -> Any:
    def emit(_typing: Any, _number: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, values: Any) -> Any:
            return builder.bitcast(values[0], kind)

        return result(given), generate

    return intrinsic(emit)


_as_float, _as_word = _same_bits(types.float32, types.int32, FLOAT), _same_bits(types.int32, types.float32, WORD)


@njit(nogil=True, cache=True, error_model="numpy")
def round_row(x: Any, q: Any, scales: Any, sums: Any) -> None:
    """x: [inputs] float32. q: [inputs] int8; scales, sums: [inputs / 32]."""
    for group in range(scales.shape[0]):
        start = group * 32
        largest = np.int32(0)
        for i in range(start, start + 32):
            largest = max(largest, _as_word(x[i]) & np.int32(0x7FFFFFFF))  # as whole numbers: NaN is the largest
        scale = _as_float(largest) / LEVELS
        inverse = LEVELS / _as_float(largest)
        if scale < LEAST:
            scale, inverse = np.float32(0.0), np.float32(0.0)
        total = np.int32(0)
        if inverse > 0:  # of infinity and NaN it is not, and their scale makes all that it is multiplied with NaN
            for i in range(start, start + 32):
                whole = np.int32(np.rint(x[i] * inverse))
                q[i] = whole
                total += whole
        else:
            for i in range(start, start + 32):
                q[i] = 0
        scales[group] = scale
        sums[group] = scale * np.float32(total)


@njit(parallel=True, nogil=True, cache=True, error_model="numpy")
def round_rows(x: Any, q: Any, scales: Any, sums: Any) -> None:
    for row in prange(x.shape[0]):
        round_row(x[row], q[row], scales[row], sums[row])
