"""Copies between numpy and the device, in both directions, that do not wait.

Knows no batch. Invariant: an array passed to `up` or `into` is not changed afterwards.
"""

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


class Staging:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pins = device.type == "cuda"

    def up(self, array: NDArray[Any]) -> Tensor:
        """A new tensor on the device with the array's values."""
        return self._host(array).to(self.device, non_blocking=True)

    def into(self, target: Tensor, array: NDArray[Any]) -> None:
        """Overwrite the first rows and columns of a tensor, which keeps its address."""
        place = target[tuple(slice(size) for size in array.shape)]
        # Whole rows are copied directly; parts of rows are copied in one piece first, and the device distributes them.
        source = self._host(array)
        place.copy_(source if place.is_contiguous() else source.to(self.device, non_blocking=True), non_blocking=True)

    def down(self, *tensors: Tensor) -> "Landing":
        """Start copying the tensors to the host."""
        if not self._pins:
            return Landing(tensors, None)
        hosts = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
        for host, tensor in zip(hosts, tensors, strict=True):
            host.copy_(tensor, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        return Landing(tuple(hosts), event)

    def _host(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        # Only pinned memory is copied without waiting. Torch keeps it until the copy has been made.
        return tensor.pin_memory() if self._pins else tensor


class Landing:
    """Tensors on their way to the host."""

    def __init__(self, tensors: tuple[Tensor, ...], event: torch.cuda.Event | None) -> None:
        self._tensors = tensors
        self._event = event

    def wait(self) -> tuple[Tensor, ...]:
        if self._event is not None:
            self._event.synchronize()
        return self._tensors
