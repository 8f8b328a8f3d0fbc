"""One launch of a kernel, for compiling it without a device.

A kernel's file has a function `launches(architecture) -> list[Launch]` with all launches that a runner may make there;
`kernels.compile` finds these functions by name and knows no kernel. Invariant: exactly what the launcher asks for is
compiled, since `run` calls the launcher itself, with tensors on the CPU whose contents are not read.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launch:
    name: str
    run: Callable[[], object]
    may_spill: bool = False  # allowed where a kernel of prompts is bound by computation; never for decodes
    checked: bool = False  # compiled by every `make check`, not only on request
