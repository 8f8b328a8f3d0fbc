"""Kernels start on the device of their tensors: triton by itself takes the current one."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from kernels.on_device import on_device

KERNELS = Path(__file__).parents[3] / "kernels"


class Noted:
    """Stands where a kernel would: what it is launched with, and on which device that was the current one."""

    def __init__(self) -> None:
        self.current = [0]
        self.launched: list[tuple] = []

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        """In place of torch's, which needs a driver."""
        self.current.append(device.index)
        yield
        self.current.pop()

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launched.append((self.current[-1], grid, arguments, options))


def test_a_kernel_is_launched_on_the_device_of_its_tensors(monkeypatch) -> None:
    noted = Noted()
    monkeypatch.setattr(torch.cuda, "device", noted.device)
    on_device(torch.device("cuda", 3), noted, (2, 1))("a", "b", BLOCK=16)
    on_device(torch.device("cuda", 0), noted, (1,))()
    assert noted.launched == [(3, (2, 1), ("a", "b"), {"BLOCK": 16}), (0, (1,), (), {})]
    assert noted.current == [0]


def test_a_launch_that_fails_leaves_the_current_device_as_it_was(monkeypatch) -> None:
    left: list[int] = []

    @contextmanager
    def device(device: torch.device) -> Iterator[None]:
        try:
            yield
        finally:
            left.append(device.index)

    monkeypatch.setattr(torch.cuda, "device", device)
    with pytest.raises(TypeError):
        on_device(torch.device("cuda", 1), {}, ([],))()
    assert left == [1]


def test_tensors_of_the_cpu_need_no_driver() -> None:
    noted = Noted()
    on_device(torch.device("cpu"), noted, (1,))(5)
    assert noted.launched == [(0, (1,), (5,), {})]


def test_no_launcher_does_without() -> None:
    """A launch is a call of a subscript; all files of kernels have none but that of `on_device`."""
    found = {
        path.name
        for path in KERNELS.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    }
    assert found == {"on_device.py"}
