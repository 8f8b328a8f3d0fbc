"""How threads share the work of a step inside compiled code: items are claimed, and counted when they are done.

Work is cut into phases, and each phase into items. A thread takes the next item that nobody has taken, and goes on to
the next phase when all items of this one are done. So no thread waits for one that has not begun: who comes late finds
the phases before it done, and who is held up by something else on its core leaves its share to the others.

A thread can lose its core in the middle of an item, for as long as other processes want it. The items of a long phase
are therefore computed beside the place where they belong, and `take` gives an item that is late to a second thread: the
first to `win` it writes it. The one that comes later has read what others were writing by then, and throws it away.
Items too short for that are claimed and awaited.

A phase has a line of memory of its own: how many items were claimed, how many are done, and which were won. Knows
nothing of what the items are. Invariant: what was written for an item is seen by all threads that `await_done` lets
pass, or that `take` tells that all are done.
"""

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

LINE = 8  # numbers in a line of a processor's cache
ITEMS_WON_MAX = 64  # of a phase: a bit each
SPINS = 4_000  # some 80 microseconds, longer than most items take
SLEEP_US = 50  # then: whoever holds the item has lost its core, perhaps to whom this one goes now
IS_X86 = llvmlite.binding.get_process_triple().startswith("x86_64")


def ledger(phases: int) -> NDArray[np.int64]:
    """The counts of a step's phases, for the functions below."""
    return np.zeros((phases, LINE), np.int64)


def _place(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    counts = context.make_array(signature.args[0])(context, builder, values[0])
    return builder.gep(counts.data, [values[1]])


def _emit_add(_typing: Any, counts: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature, values)
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "acq_rel")

    return types.int64(counts, index), generate


def _emit_or(_typing: Any, counts: Any, index: Any, bits: Any) -> Any:
    """Returns what was there before."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("or", _place(context, builder, signature, values), values[2], "acq_rel")

    return types.int64(counts, index, bits), generate


def _emit_read(_typing: Any, counts: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load_atomic(_place(context, builder, signature, values), "acquire", 8)

    return types.int64(counts, index), generate


def _emit_pause(_typing: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        if IS_X86:
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), generate


def _emit_sleep(_typing: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, _values: Any) -> Any:
        word = ir.IntType(32)
        kind = ir.FunctionType(word, [word])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "usleep"), [word(SLEEP_US)])
        return context.get_dummy_value()

    return types.void(), generate


_add: Any = intrinsic(_emit_add)
_or: Any = intrinsic(_emit_or)
_read: Any = intrinsic(_emit_read)
_pause: Any = intrinsic(_emit_pause)
_sleep: Any = intrinsic(_emit_sleep)


@njit(nogil=True, cache=True)
def claim(counts: Any, phase: Any) -> Any:
    """The next item of this phase; one above the last when there is none left."""
    return _add(counts, phase * LINE)


@njit(nogil=True, cache=True)
def done(counts: Any, phase: Any) -> None:
    """An item that was claimed is done."""
    _add(counts, phase * LINE + 1)


@njit(nogil=True, cache=True)
def await_done(counts: Any, phase: Any, items: int) -> None:
    spins = 0
    while _read(counts, phase * LINE + 1) < items:
        spins += 1
        _wait(spins)


@njit(nogil=True, cache=True)
def _wait(spins: int) -> None:
    if spins < SPINS:
        _pause()
    else:
        _sleep()


@njit(nogil=True, cache=True)
def take(counts: Any, phase: Any, items: int, patience: int) -> Any:
    """The next item of this phase, or one that somebody else has not finished after so many turns of waiting. `items`
    when all are done.
    """
    item = claim(counts, phase)
    spins = 0
    while item >= items and _read(counts, phase * LINE + 1) < items:
        spins += 1
        if spins < patience:
            _pause()
        else:
            item = _late(_read(counts, phase * LINE + 2), items)
            if item >= items:  # all are won: the last is being written
                _wait(spins)
    return min(item, items)


@njit(nogil=True, cache=True)
def _late(won: Any, items: int) -> Any:
    """The first item that nobody has won."""
    item = 0
    while item < items and (won >> item) & 1:
        item += 1
    return item


@njit(nogil=True, cache=True)
def wins(counts: Any, phase: Any, item: Any) -> Any:
    """Whether this is the first result of an item that was taken: then it is to be written, and the item `done`."""
    bit = np.int64(1) << item
    return _or(counts, phase * LINE + 2, bit) & bit == 0


def wake() -> None:
    """Have numba load now what it loads when anything is first called, a third of a second of Python."""
    claim(ledger(1), 0)
