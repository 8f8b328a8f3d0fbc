"""The check of accuracy compares every kernel there is, and finds out each that computes nothing.

Launches are caught instead of run (`kernels.capture`), so that no device and no interpreter is needed.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from triton.runtime.jit import JITFunction

import kernels
from bench.gpu import accuracy
from bench.gpu.machine import Machine
from bench.gpu.part import Found
from kernels.capture import Capture, capture


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.iter_modules(kernels.__path__):
        yield importlib.import_module(f"kernels.{found.name}")


def kernels_there_are() -> set[str]:
    """All functions of triton's that no other of them calls: those are parts of kernels."""
    every = {value for module in modules() for value in vars(module).values() if isinstance(value, JITFunction)}
    parts = {each.fn.__globals__.get(name) for each in every for name in each.fn.__code__.co_names}
    return {each.fn.__name__ for each in every - parts}


@pytest.fixture
def nothing_computed() -> Iterator[Capture]:
    """What is not written to is full of NaN, so that no case is right by what lay in memory before."""
    torch.use_deterministic_algorithms(True)
    try:
        with capture("sm_90") as caught:
            yield caught
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.fixture
def found(nothing_computed) -> Found:
    return accuracy.run(Machine(dry=True))


def test_every_kernel_is_launched(found, nothing_computed) -> None:
    launched = {variant.kernel for variant in nothing_computed.variants.values()}
    assert launched == kernels_there_are()
    assert len(launched) >= 18


def test_a_kernel_that_computes_nothing_is_found_out_by_every_case(found) -> None:
    cases = list(accuracy._cases(Machine(dry=True)))
    wrong = [case for case in cases if not any(fault.startswith(f"{case.kernel} ") for fault in found.faults)]
    assert wrong == []
    assert len(found.faults) == len(cases)
    assert not [fault for fault in found.faults if "Assertion" in fault]
