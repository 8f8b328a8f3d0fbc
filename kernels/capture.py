"""Captures what launchers ask triton to compile, without compiling it and without a device.

Owns the replacement of triton's driver. Knows no kernel. Invariant: nothing is compiled or run while it is in force,
and afterwards triton is as it was.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel with its types and compile-time constants."""

    kernel: str
    source: ASTSource
    options: dict[str, object]


@dataclass(frozen=True, slots=True)
class _NoDevice:
    """Replaces triton's driver of a GPU. Its id keeps triton's caches apart from those of any real device."""

    target: GPUTarget

    def get_current_device(self) -> str:
        return f"none of sm_{self.target.arch}"

    def get_current_stream(self, device: str) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> GPUTarget:
        return self.target


@dataclass(slots=True)
class Capture:
    variants: dict[str, Variant] = field(default_factory=dict[str, Variant])  # by triton's own key

    def __call__(self, *, key: str, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002
        source = ASTSource(fn.jit_function, compile["signature"], compile["constants"], compile["configs"][0])
        options = {name: compile[name] for name in ("num_warps", "num_stages", "enable_fp_fusion")}
        name = fn.name.rpartition(".")[2]
        self.variants[f"{name} {key}"] = Variant(name, source, options)
        return True  # do not compile, do not launch


def target_of(architecture: str) -> GPUTarget:
    """architecture: sm_90."""
    return GPUTarget("cuda", int(architecture.removeprefix("sm_")), 32)


@contextmanager
def capture(architecture: str) -> Generator[Capture]:
    """Inside, launching a kernel only records its variant in the yielded Capture."""
    caught = Capture()
    active, hook = driver._active, knobs.runtime.jit_cache_hook  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    driver._active = _NoDevice(target_of(architecture))  # noqa: SLF001  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    knobs.runtime.jit_cache_hook = caught  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield caught
    finally:
        driver._active, knobs.runtime.jit_cache_hook = active, hook  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
