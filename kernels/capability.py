"""The capabilities of the chip that runs the kernels. Knows no kernel."""

from typing import Any, cast

import torch
from triton import knobs
from triton.runtime.driver import driver

_INTERPRETED = 80


def capability(device: torch.device) -> int:
    """90 for sm_90. Interpreted kernels count as on sm_80. Otherwise, tensors that are on no CUDA device are only
    captured, for the chip of triton's current target.
    """
    if knobs.runtime.interpret:
        return _INTERPRETED
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return 10 * major + minor
    return int(cast("Any", driver.active).get_current_target().arch)


def has_fp8(device: torch.device) -> bool:
    """Whether the chip has E4M3 natively."""
    return capability(device) >= 89
