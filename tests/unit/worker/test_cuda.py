"""Chips and models that the CUDA kernels are not made for are refused before anything is loaded."""

from dataclasses import replace

import pytest

from bench.gpu.random_model import llama_8b
from worker.cuda import check_kernels
from worker.errors import CannotStart


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
