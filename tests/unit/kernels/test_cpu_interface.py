"""What the operations on a CPU make of the arguments that only a GPU's kernels need."""

import pytest
import torch

from kernels.cpu import CpuOps
from kernels.reference import ReferenceOps


def turned(ops, **more) -> tuple[torch.Tensor, torch.Tensor]:
    """Q, and the pool's K."""
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, 16), torch.randn(3, 2, 16), torch.randn(3, 2, 16)
    angle = torch.rand(8, 8)
    k_cache, v_cache = torch.zeros(2, 2, 4, 2, 16)
    rotated = ops.rope_and_cache(
        q,
        k,
        v,
        cos=angle.cos(),
        sin=angle.sin(),
        positions=torch.tensor([0, 3, 7]),
        k_cache=k_cache,
        v_cache=v_cache,
        slots=torch.tensor([4, -1, 6]),
        **more,
    )
    return rotated, k_cache


def test_heads_are_normed_as_in_the_reference() -> None:
    norms = {"q_norm": torch.rand(16), "k_norm": torch.rand(16), "norm_eps": 1e-6}
    for actual, expected in zip(turned(CpuOps(), **norms), turned(ReferenceOps(), **norms), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(turned(CpuOps())[0], turned(CpuOps(), **norms)[0])


def test_a_quantized_pool_is_refused() -> None:
    scale = torch.zeros(2, 4, 2)
    with pytest.raises(NotImplementedError, match="takes no scales"):
        turned(CpuOps(), k_scale=scale, v_scale=scale)
    with pytest.raises(NotImplementedError, match="takes no scales"):
        attended(k_scale=scale, v_scale=scale)


def test_a_soft_cap_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="no soft cap"):
        attended(soft_cap=30.0)


def attended(**more) -> torch.Tensor:
    return CpuOps().paged_attention(
        torch.zeros(1, 4, 16),
        torch.zeros(2, 4, 2, 16),
        torch.zeros(2, 4, 2, 16),
        block_tables=torch.ones(1, 1, dtype=torch.int32),
        query_start=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=torch.ones(1, dtype=torch.int32),
        scale=0.25,
        window=None,
        **more,
    )
