"""The choice of a worker's device and runner, from the settings `device` and `runner`.

Does not import torch: the number of CUDA devices is passed in. Invariant: the result is a runner and the one device
that it computes on, or an error that says what to change.
"""

import re
from collections.abc import Callable
from typing import Literal

from worker.errors import CannotStart

Runner = Literal["torch", "triton", "fake"]

FORMS = "auto, cpu, cuda, or one of several CUDA devices as cuda:1"
_FORM = re.compile(r"auto|cpu|cuda(:(?P<index>[0-9]{1,3}))?", re.ASCII)
_KIND_OF: dict[Runner, str] = {"torch": "cpu", "triton": "cuda", "fake": "cpu"}


def is_device(device: str) -> bool:
    """Whether the text has one of the FORMS."""
    return _FORM.fullmatch(device) is not None


def is_cuda(device: str) -> bool:
    return device.startswith("cuda")


def choose(runner: Runner | None, device: str, cuda_devices: Callable[[], int]) -> tuple[Runner, str]:
    """The runner and its device. `auto` takes CUDA where there is a device, unless the runner that was asked for
    computes elsewhere. A CUDA device is returned with its number, the first one if none was given. `cuda_devices`
    returns how many there are, and is called only if that matters. Raises CannotStart.
    """
    kind = "cuda" if is_cuda(device) else device
    if runner == "fake":
        return runner, _KIND_OF[runner]
    if runner is not None and kind not in {"auto", _KIND_OF[runner]}:
        raise CannotStart(f"--runner {runner} computes on {_KIND_OF[runner]}, not on {device}; leave one of them out")
    if kind == "cpu" or runner == "torch":
        return "torch", "cpu"
    form = _FORM.fullmatch(device)
    assert form is not None, FORMS
    number, found = int(form["index"] or 0), cuda_devices()
    if number < found:
        return "triton", f"cuda:{number}"
    if runner is None and kind == "auto":
        return "torch", "cpu"
    asked = f"--device {device}" if kind == "cuda" else f"--runner {runner}"
    if found:
        raise CannotStart(f"{asked} needs a CUDA device of that number, and torch finds cuda:0 to cuda:{found - 1}")
    raise CannotStart(f"{asked} needs a CUDA device, and torch finds none; use --device cpu")
