"""The device that a runner computes on: whether it is torch's current one, and whether it still works.

After a fault (an illegal address, a bus that it has fallen off) every later call of a CUDA device fails until the
process ends. An error that belongs to one step looks the same; so the device is asked. And a thread has a current
device of its own, the first one at its start, on which its streams and events are made.

Knows no step. Invariant: work that fails on a device which still computes raises what it raised, unchanged.
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
        """Inside, the device is the current one. Raises RunnerBroken from what is raised there after a fault."""
        with current(self._device):
            try:
                yield
            except Exception as error:
                if self._works():
                    raise
                raise RunnerBroken(f"the device {self._device} has failed") from error

    @torch.inference_mode()
    def _works(self) -> bool:
        """A number there and back, which takes no memory: what failed may have been for lack of it."""
        try:
            return self._mark.fill_(1.0).item() == 1.0
        except RuntimeError:
            return False
