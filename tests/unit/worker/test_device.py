"""Where a worker computes, from what was asked for and what is there."""

import pytest

from worker.device import choose
from worker.errors import CannotStart


@pytest.mark.parametrize(
    ("runner", "device", "devices", "chosen"),
    [
        (None, "auto", 1, ("triton", "cuda:0")),
        (None, "auto", 0, ("torch", "cpu")),
        (None, "cpu", 1, ("torch", "cpu")),
        (None, "cuda", 2, ("triton", "cuda:0")),
        (None, "cuda:0", 1, ("triton", "cuda:0")),
        (None, "cuda:1", 2, ("triton", "cuda:1")),
        (None, "cuda:012", 13, ("triton", "cuda:12")),
        ("torch", "auto", 1, ("torch", "cpu")),
        ("torch", "cpu", 1, ("torch", "cpu")),
        ("triton", "auto", 1, ("triton", "cuda:0")),
        ("triton", "cuda", 1, ("triton", "cuda:0")),
        ("triton", "cuda:1", 2, ("triton", "cuda:1")),
        ("fake", "auto", 1, ("fake", "cpu")),
        ("fake", "cuda:1", 0, ("fake", "cpu")),
    ],
)
def test_what_is_chosen(runner, device, devices, chosen):
    assert choose(runner, device, lambda: devices) == chosen


@pytest.mark.parametrize(
    ("runner", "device", "devices", "told"),
    [
        (None, "cuda", 0, "--device cuda needs a CUDA device, and torch finds none; use --device cpu"),
        (None, "cuda:1", 0, "--device cuda:1 needs a CUDA device, and torch finds none"),
        (None, "cuda:2", 2, "--device cuda:2 needs a CUDA device of that number, and torch finds cuda:0 to cuda:1"),
        ("triton", "cuda:1", 1, "--device cuda:1 needs .* torch finds cuda:0 to cuda:0"),
        ("triton", "auto", 0, "--runner triton needs a CUDA device, and torch finds none"),
        ("triton", "cpu", 1, "--runner triton computes on cuda, not on cpu"),
        ("torch", "cuda:1", 2, "--runner torch computes on cpu, not on cuda:1"),
    ],
)
def test_what_cannot_be_says_what_to_change(runner, device, devices, told):
    with pytest.raises(CannotStart, match=told):
        choose(runner, device, lambda: devices)


def test_nobody_looks_for_a_device_without_need():
    def look() -> int:
        raise AssertionError("torch would be imported")

    choose("fake", "auto", look)
    choose("torch", "auto", look)
    choose(None, "cpu", look)
