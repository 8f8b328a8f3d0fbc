from types import ModuleType

import pytest

from worker.models.torch_import import CUDA_DEVICE, UNUSED, leave_out


def test_what_is_left_out_is_an_empty_module(tmp_path):
    modules: dict[str, ModuleType] = {}
    leave_out(modules, tmp_path / "none")
    assert list(modules) == [UNUSED]
    assert not [name for name in vars(modules[UNUSED]) if not name.startswith("__")]


@pytest.mark.parametrize("why", ["torch is there", "cuda is there"])
def test_nothing_is_left_out_too_late_or_beside_a_device(tmp_path, why):
    modules = {"torch": ModuleType("torch")} if why == "torch is there" else {}
    before = dict(modules)
    leave_out(modules, tmp_path if why == "cuda is there" else CUDA_DEVICE / "none")
    assert modules == before
