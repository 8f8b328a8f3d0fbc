"""How threads share the work of a step inside compiled code: items are claimed, and counted when they are done.

Work is cut into phases, and each phase into items. A thread takes the next item that nobody has taken, and goes on to
the next phase when all items of this one are done. So no thread waits for one that has not begun: who comes late finds
the phases before it done, and who is held up by something else on its core leaves its share to the others.

A phase has a line of memory of its own: how many items were claimed, and how many are done. Knows nothing of what the
items are. Invariant: what was written for an item is seen by all threads that `await_done` lets pass.
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
SPINS = 4_000  # some 80 microseconds, longer than most items take
SLEEP_US = 50  # then: whoever holds the item has lost its core, perhaps to whom this one goes now
IS_X86 = llvmlite.binding.get_process_triple().startswith("x86_64")


def ledger(phases: int) -> NDArray[np.int64]:
    """The counts of a step's phases, for `claim`, `done` and `await_done`."""
    return np.zeros((phases, LINE), np.int64)


def _place(context: Any, builder: Any, signature: Any, values: Any) -> Any:
    counts = context.make_array(signature.args[0])(context, builder, values[0])
    return builder.gep(counts.data, [values[1]])


def _emit_add(_typing: Any, counts: Any, index: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        place = _place(context, builder, signature, values)
        return builder.atomic_rmw("add", place, ir.IntType(64)(1), "acq_rel")

    return types.int64(counts, index), generate


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
        if spins < SPINS:
            _pause()
        else:
            _sleep()


def wake() -> None:
    """Have numba load now what it loads when anything is first called, a third of a second of Python."""
    claim(ledger(1), 0)
