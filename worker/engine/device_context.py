"""The device that a runner computes on: makes it torch's current one, and finds out whether it still works.

After a fault (an illegal address, a device lost from the bus) every later call to a CUDA device fails until the process
ends. An error of a single step looks the same, so the device is tested. Each thread has its own current device, by
default the first one, on which its streams and events are created.

Knows no step. Invariant: an error on a device that still works is raised unchanged.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from kernels.on_device import current
from worker.engine.runner import RunnerBroken


class DeviceContext:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mark = torch.zeros(1, device=device)

    @contextmanager
    def entered(self) -> Generator[None]:
        """Inside, the device is the current one. After a fault, whatever is raised inside becomes RunnerBroken."""
        with current(self._device):
            try:
                yield
            except Exception as error:
                if self._works():
                    raise
                raise RunnerBroken(f"the device {self._device} has failed") from error

    @torch.inference_mode()
    def _works(self) -> bool:
        """Copies a number there and back, which takes no memory: the error may have been a lack of memory."""
        try:
            return self._mark.fill_(1.0).item() == 1.0
        except RuntimeError:
            return False
