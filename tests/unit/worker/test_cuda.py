"""Chips and models that CUDA kernels are not made for are refused before anything is loaded, on whichever device."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from bench.gpu.random_model import llama_8b
from shared.settings import Secret
from worker.cuda import check_kernels, load_cuda
from worker.errors import CannotStart
from worker.metrics import WorkerMetrics
from worker.models.card import demo_model_path
from worker.settings import WorkerSettings


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (12, 0)])
def test_chips_with_kernels(capability):
    check_kernels(capability, llama_8b())
    check_kernels(capability, replace(llama_8b(), head_dim=256, hidden=16_384))


@pytest.mark.parametrize(
    ("capability", "shape", "told"),
    [
        ((7, 5), {}, r"capability 7\.5; use --device cpu"),
        ((9, 0), {"head_dim": 258}, "a head dimension of 258"),
        ((9, 0), {"hidden": 16_385}, "a hidden size of 16385"),
    ],
)
def test_what_has_no_kernels_says_what_to_change(capability, shape, told):
    with pytest.raises(CannotStart, match=told):
        check_kernels(capability, replace(llama_8b(), **shape))


def test_the_device_that_was_chosen_is_asked_and_is_the_current_one_meanwhile(monkeypatch):
    current, asked = [0], []

    @contextmanager
    def use(device):
        """In place of torch's, which needs a driver."""
        current.append(device.index)
        yield
        current.pop()

    def capability(device):
        asked.append((device.index, current[-1]))
        return 7, 5

    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capability)
    settings = WorkerSettings(nats_url=Secret("nats://host"), device="cuda:3")
    with pytest.raises(CannotStart, match=r"capability 7\.5"):
        load_cuda(settings, demo_model_path(), WorkerMetrics(), lambda _: None)
    assert asked == [(3, 3)]
