"""Where a worker computes, and with what: the settings `device` and `runner` put together.

Imports no torch: it is told whether there is a CUDA device. Invariant: what comes out names a runner and the one device
that it computes on, or is an error that says what to change.
"""

from collections.abc import Callable
from typing import Literal

from worker.errors import CannotStart

Device = Literal["auto", "cpu", "cuda"]
Runner = Literal["torch", "triton", "fake"]

_DEVICE_OF: dict[Runner, Device] = {"torch": "cpu", "triton": "cuda", "fake": "cpu"}


def choose(runner: Runner | None, device: Device, cuda_is_there: Callable[[], bool]) -> tuple[Runner, Device]:
    """Auto takes CUDA where there is a device, unless a runner was asked for that computes elsewhere. `cuda_is_there`
    is asked only where it matters. Raises CannotStart.
    """
    if runner == "fake":
        return runner, _DEVICE_OF[runner]
    if runner is not None and device not in {"auto", _DEVICE_OF[runner]}:
        raise CannotStart(f"--runner {runner} computes on {_DEVICE_OF[runner]}, not on {device}; leave one of them out")
    if device == "cpu" or runner == "torch":
        return "torch", "cpu"
    if cuda_is_there():
        return "triton", "cuda"
    if runner is None and device == "auto":
        return "torch", "cpu"
    asked = "--device cuda" if runner is None else f"--runner {runner}"
    raise CannotStart(f"{asked} needs a CUDA device, and torch finds none; use --device cpu")
