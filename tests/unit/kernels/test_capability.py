"""What kernels are chosen by is the chip of their tensors, not the current one."""

import torch

from kernels.capability import capability, has_fp8
from kernels.capture import capture

CHIPS = [(9, 0), (8, 6)]


def test_the_chip_is_that_of_the_tensors(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: CHIPS[device.index])
    devices = [torch.device("cuda", index) for index in range(2)]
    assert [capability(device) for device in devices] == [90, 86]
    assert [has_fp8(device) for device in devices] == [True, False]


def test_without_a_device_it_is_the_chip_that_is_captured_for() -> None:
    with capture("sm_89"):
        assert capability(torch.device("cpu")) == 89
