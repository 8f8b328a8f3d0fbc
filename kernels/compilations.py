"""Counts the kernels that Triton has compiled in this process, or has loaded from its cache on disk.

Each takes between a tenth of a second and several seconds, so all should be loaded before the first request. Invariant:
a hook that was installed before is still called, and its decision is kept.
"""

from collections.abc import Callable
from typing import Any, cast

import triton


class Compilations:
    """`count` grows by one with each new specialisation of any kernel. Interpreted kernels are never compiled."""

    def __init__(self) -> None:
        self.count = 0
        self.late = 0  # those of them after `ready`
        self._on_late: Callable[[str], None] | None = None

    def watch(self) -> None:
        runtime = cast("Any", triton).knobs.runtime
        before = runtime.jit_cache_hook  # called when a specialisation is not in memory, before it is compiled

        def hook(**what: Any) -> bool | None:
            self._note(str(what["fn"].name))
            return None if before is None else before(**what)

        runtime.jit_cache_hook = hook

    def ready(self, on_late: Callable[[str], None]) -> None:
        """From now on every compilation is late: `on_late` is called with the kernel's name."""
        self._on_late = on_late

    def _note(self, kernel: str) -> None:
        self.count += 1
        if self._on_late is not None:
            self.late += 1
            self._on_late(kernel)
