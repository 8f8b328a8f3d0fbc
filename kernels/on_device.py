"""Launches kernels on the device of their tensors.

Triton launches on the current device, whichever that is, and on that device's current stream. Owns the switch between
devices. Knows no kernel. Invariant: a kernel is launched on the current stream of its tensors' device; afterwards the
current device is the same as before.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch


def on_device(device: torch.device, kernel: object, grid: tuple[Any, ...]) -> Callable[..., None]:
    """`kernel[grid]`, to be called with the kernel's arguments and options."""

    def launch(*arguments: object, **options: object) -> None:
        with current(device):
            cast("Any", kernel)[grid](*arguments, **options)

    return launch


def current(device: torch.device) -> AbstractContextManager[object]:
    """Inside, `device` is torch's current one. Nothing changes for a CPU, where kernels are interpreted or only
    captured.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
