"""The kernels, compiled for GPUs that need not be there, from the very arguments that the launchers pass."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.driver import driver

from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope_cache import rope_and_cache
from kernels.silu_and_mul import silu_and_mul

TARGETS = {"sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32)}
SHARED_BYTES_MAX = {"sm_80": 163 * 1024, "sm_90": 227 * 1024}  # what one program may have, of CUDA's own tables
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"

BLOCK_SIZE = 16


class NoDevice:
    """Stands where triton's driver of a GPU would. The id keeps what it caches apart from any real device."""

    def get_current_device(self) -> str:
        return "none"

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGETS["sm_90"]


@dataclass
class Launches:
    """What triton was asked to run: one source for each specialisation, by its cache key."""

    sources: dict[str, tuple[ASTSource, dict[str, object]]] = field(default_factory=dict)

    def hook(self, *, key: str, fn: Any, compile: dict[str, Any], **_: object) -> bool:  # noqa: A002
        source = ASTSource(fn.jit_function, compile["signature"], compile["constants"], compile["configs"][0])
        options = {name: compile[name] for name in ("num_warps", "num_stages", "enable_fp_fusion")}
        self.sources[f"{fn.name} {key}"] = (source, options)
        return True  # do not compile, do not launch


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Launches]:
    launches = Launches()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # nothing compiled by an earlier run, nothing left behind
    monkeypatch.setattr(driver, "_active", NoDevice())
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", launches.hook)
    return launches


def norms(tokens: int, hidden: int, dtype: torch.dtype) -> None:
    x, weight = torch.zeros(tokens, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    rms_norm(x, weight, 1e-5)
    add_rms_norm(x, x.clone(), weight, 1e-5)


def activation(tokens: int, intermediate: int, dtype: torch.dtype) -> None:
    silu_and_mul(torch.zeros(tokens, 2 * intermediate, dtype=dtype))


def rope(tokens: int, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> None:
    qkv = torch.zeros(tokens, heads + 2 * kv_heads, head_dim, dtype=dtype)
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    cache = torch.zeros(2, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
    angles = torch.zeros(8, head_dim // 2)
    index = torch.zeros(tokens, dtype=torch.int64)
    rope_and_cache(q, k, v, cos=angles, sin=angles, positions=index, k_cache=cache, v_cache=cache, slots=index)


def attention(
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    *,
    sequences: int = 1,
    blocks: int = 1,
    window: int | None = None,
) -> None:
    cache = torch.zeros(2, BLOCK_SIZE, kv_heads, head_dim, dtype=dtype)
    paged_attention(
        torch.zeros(tokens, heads, head_dim, dtype=dtype),
        cache,
        cache,
        block_tables=torch.zeros(sequences, blocks, dtype=torch.int32),
        query_start=torch.zeros(sequences + 1, dtype=torch.int32),
        context_lens=torch.zeros(sequences, dtype=torch.int32),
        scale=0.125,
        window=window,
    )


CALLS: dict[str, Callable[[], None]] = {
    "norms": lambda: norms(4, 4096, torch.bfloat16),
    "activation": lambda: activation(4, 14336, torch.bfloat16),
    "rope": lambda: rope(4, 32, 8, 128, torch.bfloat16),
    "attention, demo model": lambda: attention(4, 9, 3, 64, torch.bfloat16),
    "attention, 8B model": lambda: attention(4, 32, 8, 128, torch.bfloat16),
    "attention, odd head_dim": lambda: attention(4, 5, 1, 80, torch.float16),
    "attention, window": lambda: attention(4, 32, 8, 128, torch.bfloat16, window=4096),
    "attention, fp32": lambda: attention(4, 4, 2, 32, torch.float32),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("call", CALLS)
def test_it_compiles_without_spills(launches: Launches, tmp_path: Path, call: str, target: str) -> None:
    CALLS[call]()
    assert launches.sources
    for source, options in launches.sources.values():
        kernel = triton.compile(source, target=TARGETS[target], options=options)
        assert kernel.metadata.shared <= SHARED_BYTES_MAX[target]
        usage = resource_usage(kernel.asm["cubin"], tmp_path)
        assert 0 < usage["REG"] <= 255
        assert usage["LOCAL"] == usage["STACK"] == 0, f"{source.name} spills registers: {usage}"


def resource_usage(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers and bytes, as ptxas reports them for the one function in `cubin`."""
    file = folder / "kernel.cubin"
    file.write_bytes(cubin)
    shown = subprocess.run(
        [CUOBJDUMP, "--dump-resource-usage", file], capture_output=True, text=True, timeout=30, check=True
    )
    words = shown.stdout.split("REG:")[1].split()
    pairs = [word.split(":") for word in ["REG:" + words[0], *words[1:]]]
    return {pair[0]: int(pair[1]) for pair in pairs if pair[0] in {"REG", "STACK", "LOCAL"}}


def test_no_size_of_batch_compiles_anew(launches: Launches) -> None:
    """A compilation takes seconds, in which all streams of a worker stand still."""
    for tokens in (1, 2, 15, 16, 17, 256):
        norms(tokens, 576, torch.bfloat16)
        activation(tokens, 1536, torch.bfloat16)
        rope(tokens, 9, 3, 64, torch.bfloat16)
        for sequences, blocks in [(1, 1), (1, 2), (16, 16), (17, 33), (256, 512)]:
            attention(tokens, 9, 3, 64, torch.bfloat16, sequences=sequences, blocks=blocks)
    names = sorted(key.split()[0] for key in launches.sources)
    assert names == [
        "_add_rms_norm_kernel",
        "_paged_attention_kernel",
        "_rms_norm_kernel",
        "_rope_and_cache_kernel",
        "_silu_and_mul_kernel",
    ]
