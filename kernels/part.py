"""`part`: `triton.jit` for functions that kernels call, typed by what they return.

Triton inlines such a function. Triton's own decorator is typed for kernels, which must not be called: a type checker
takes the code after such a call for unreachable and does not check it.
"""

from typing import TYPE_CHECKING, TypeVar

import triton

if TYPE_CHECKING:
    from collections.abc import Callable

    R = TypeVar("R")

    def part(function: Callable[..., R]) -> Callable[..., R]: ...
else:
    part = triton.jit
