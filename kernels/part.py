"""`part`: `triton.jit` for functions that kernels call, typed by what they return.

Triton inlines such a function. Its own decorator is typed for kernels, which nobody may call: after such a call a type
checker takes the rest of the caller for code that is never reached, and looks at none of it.
"""

from typing import TYPE_CHECKING, TypeVar

import triton

if TYPE_CHECKING:
    from collections.abc import Callable

    R = TypeVar("R")

    def part(function: Callable[..., R]) -> Callable[..., R]: ...
else:
    part = triton.jit
