"""What the chip can do that kernels are launched on. Owns the question; knows no kernel."""

from typing import Any, cast

from triton import knobs
from triton.runtime.driver import driver

_INTERPRETED = 80


def capability() -> int:
    """90 for sm_90. Interpreted kernels run as on sm_80."""
    if knobs.runtime.interpret:
        return _INTERPRETED
    return int(cast("Any", driver.active).get_current_target().arch)


def has_fp8() -> bool:
    """Whether E4M3 is a type of the chip's own."""
    return capability() >= 89
