"""Where a worker computes, from what was asked for and what is there."""

import pytest

from worker.device import choose
from worker.errors import CannotStart


@pytest.mark.parametrize(
    ("runner", "device", "cuda", "chosen"),
    [
        (None, "auto", True, ("triton", "cuda")),
        (None, "auto", False, ("torch", "cpu")),
        (None, "cpu", True, ("torch", "cpu")),
        (None, "cuda", True, ("triton", "cuda")),
        ("torch", "auto", True, ("torch", "cpu")),
        ("torch", "cpu", True, ("torch", "cpu")),
        ("triton", "auto", True, ("triton", "cuda")),
        ("triton", "cuda", True, ("triton", "cuda")),
        ("fake", "auto", True, ("fake", "cpu")),
        ("fake", "cuda", False, ("fake", "cpu")),
    ],
)
def test_what_is_chosen(runner, device, cuda, chosen):
    assert choose(runner, device, lambda: cuda) == chosen


@pytest.mark.parametrize(
    ("runner", "device", "told"),
    [
        (None, "cuda", "--device cuda needs a CUDA device"),
        ("triton", "auto", "--runner triton needs a CUDA device"),
        ("triton", "cpu", "--runner triton computes on cuda, not on cpu"),
        ("torch", "cuda", "--runner torch computes on cpu, not on cuda"),
    ],
)
def test_what_cannot_be_says_what_to_change(runner, device, told):
    with pytest.raises(CannotStart, match=told):
        choose(runner, device, lambda: False)


def test_nobody_looks_for_a_device_without_need():
    def look() -> bool:
        raise AssertionError("torch would be imported")

    choose("fake", "auto", look)
    choose("torch", "auto", look)
    choose(None, "cpu", look)
