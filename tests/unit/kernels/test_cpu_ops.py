"""The fast CPU operations against the plain ones, on the edges of every shape, with a pool full of NaN around them."""

import math

import pytest
import torch

from kernels.cpu import CpuOps
from kernels.reference import ReferenceOps

BLOCKS = 64
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


def pool(contexts: list[int], *, block_size: int, kv_heads: int, head_dim: int):
    """K and V of each sequence on scattered blocks; everything else, the null block included, is NaN."""
    generator = torch.Generator().manual_seed(3)
    shape = (BLOCKS, block_size, kv_heads, head_dim)
    k_cache, v_cache = torch.full(shape, math.nan), torch.full(shape, math.nan)
    free = (torch.randperm(BLOCKS - 1, generator=generator) + 1).tolist()
    needed = [-(-context // block_size) for context in contexts]
    tables = torch.zeros(len(contexts), max(needed), dtype=torch.int32)
    for row, (context, count) in enumerate(zip(contexts, needed, strict=True)):
        blocks = torch.tensor([free.pop() for _ in range(count)])
        tables[row, :count] = blocks.int()
        places = torch.arange(context)
        for cache in (k_cache, v_cache):
            values = torch.randn(context, kv_heads, head_dim, generator=generator)
            cache[blocks[places // block_size], places % block_size] = values
    return k_cache, v_cache, tables


def attend(ops, queries, contexts, *, window=None, block_size=4, heads=6, kv_heads=2, head_dim=8, dtype=torch.float32):
    k_cache, v_cache, tables = pool(contexts, block_size=block_size, kv_heads=kv_heads, head_dim=head_dim)
    q = torch.randn(sum(queries), heads, head_dim, generator=torch.Generator().manual_seed(4)).to(dtype)
    return ops.paged_attention(
        q,
        k_cache,
        v_cache,
        block_tables=tables,
        query_start=torch.tensor([0, *queries]).cumsum(0).int(),
        context_lens=torch.tensor(contexts).int(),
        scale=head_dim**-0.5,
        window=window,
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("queries", "contexts"),
    [
        ([1], [1]),
        ([1, 1, 1, 1], [3, 4, 5, 17]),
        ([1] * 8, [1, 15, 16, 17, 18, 31, 32, 33]),
        ([1, 1], [1, 150]),
        ([4], [4]),
        ([5], [5]),
        ([2, 3], [9, 3]),
        ([3, 1, 7, 1, 2], [3, 20, 40, 1, 33]),
    ],
)
def test_attention_equals_the_reference(queries, contexts, dtype):
    got, want = (attend(ops, queries, contexts, dtype=dtype) for ops in (CpuOps(), ReferenceOps()))
    assert got.dtype == dtype
    torch.testing.assert_close(got, want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (5, 1), (8, 2), (9, 3)])
@pytest.mark.parametrize("head_dim", [2, 64, 80])
def test_attention_with_other_head_counts(heads, kv_heads, head_dim):
    shape = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": 16}
    got, want = (attend(ops, [1, 3, 1], [17, 3, 90], **shape) for ops in (CpuOps(), ReferenceOps()))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("window", [1, 2, 4, 5, 16, 39, 40, 1000])
def test_attention_through_a_window(window):
    shape = {"window": window, "queries": [1, 3, 5, 2, 1], "contexts": [1, 3, 40, 17, 40]}
    got, want = (attend(ops, **shape) for ops in (CpuOps(), ReferenceOps()))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_layers_with_different_windows_share_a_step():
    k_cache, v_cache, tables = pool([40, 9], block_size=4, kv_heads=2, head_dim=8)
    q, starts, contexts = torch.randn(4, 6, 8), torch.tensor([0, 3, 4]).int(), torch.tensor([40, 9]).int()
    step = {"block_tables": tables, "query_start": starts, "context_lens": contexts, "scale": 0.3}
    ops = CpuOps()
    for window in (None, 5, None, 7, 5):
        got = ops.paged_attention(q, k_cache, v_cache, window=window, **step)
        want = ReferenceOps().paged_attention(q, k_cache, v_cache, window=window, **step)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_a_decode_is_bitwise_the_same_in_any_batch():
    contexts = [33, 7, 140, 19]
    k_cache, v_cache, tables = pool(contexts, block_size=4, kv_heads=2, head_dim=8)
    q = torch.randn(4, 6, 8)

    def run(members: list[int]) -> torch.Tensor:
        return CpuOps().paged_attention(
            q[members],
            k_cache,
            v_cache,
            block_tables=tables[members],
            query_start=torch.arange(len(members) + 1).int(),
            context_lens=torch.tensor(contexts)[members].int(),
            scale=0.3,
            window=None,
        )

    together = run([0, 1, 2, 3])
    assert torch.equal(run([2, 0])[0], together[2])
    for member in range(4):
        assert torch.equal(run([member])[0], together[member])


def test_the_plan_of_one_step_is_not_used_for_the_next():
    ops = CpuOps()
    for contexts in ([5, 9], [6, 10], [30, 2]):
        got, want = (attend(chosen, [1, 1], contexts) for chosen in (ops, ReferenceOps()))
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("slots", [[5], [3, -1, 130, 17, -1], [-1, -1]])
def test_rope_and_cache_equal_the_reference(slots, dtype):
    tokens = len(slots)
    qkv = torch.randn(tokens, 6 + 2 + 2, 8, generator=torch.Generator().manual_seed(5)).to(dtype)
    angles = torch.outer(torch.arange(50.0), 10.0 ** -torch.arange(4.0))
    got = []
    for ops in (CpuOps(), ReferenceOps()):
        k_cache, v_cache = torch.full((40, 4, 2, 8), -1.0), torch.full((40, 4, 2, 8), -1.0)
        q, k, v = qkv.clone().split((6, 2, 2), 1)
        rotated = ops.rope_and_cache(
            q,
            k,
            v,
            cos=angles.cos(),
            sin=angles.sin(),
            positions=torch.arange(tokens) * 9,
            k_cache=k_cache,
            v_cache=v_cache,
            slots=torch.tensor(slots),
        )
        got.append((rotated, k_cache, v_cache))
    for fast, plain in zip(*got, strict=True):
        torch.testing.assert_close(fast, plain, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    written = (got[0][2] != -1).all(-1).all(-1).flatten().nonzero().flatten().tolist()
    assert written == sorted(slot for slot in slots if slot >= 0)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("tokens", [1, 5])
def test_elementwise_operations_equal_the_reference(tokens, dtype):
    x, residual, weight, gate_up = (torch.randn(tokens, 48).to(dtype) for _ in range(4))
    results = []
    for ops in (CpuOps(), ReferenceOps()):
        normed = ops.rms_norm(x, weight[0], 1e-5)
        added, total = ops.add_rms_norm(x.clone(), residual.clone(), weight[0], 1e-5)
        results.append((normed, added, total, ops.silu_and_mul(gate_up)))
    for fast, plain in zip(*results, strict=True):
        assert fast.dtype == dtype
        torch.testing.assert_close(fast, plain, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("loud", [1e4, math.inf, math.nan])
def test_a_row_is_bitwise_the_same_beside_loud_neighbours(loud):
    """Decodes, a chunk and a prompt in one step: whatever the others hold, each has the bits of quiet company."""
    contexts, queries = [33, 7, 12, 40, 19], [1, 7, 3, 1, 1]
    starts = torch.tensor([0, *queries]).cumsum(0).int()
    k_cache, v_cache, tables = pool(contexts, block_size=4, kv_heads=2, head_dim=8)
    q = torch.randn(sum(queries), 6, 8, generator=torch.Generator().manual_seed(6))

    def run(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> torch.Tensor:
        return CpuOps().paged_attention(
            q,
            k_cache,
            v_cache,
            block_tables=tables,
            query_start=starts,
            context_lens=torch.tensor(contexts).int(),
            scale=0.3,
            window=None,
        )

    quiet = run(q, k_cache, v_cache)
    for sequence, (start, end) in enumerate(zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)):
        own = tables[sequence, : -(-contexts[sequence] // 4)].long()
        loud_q, loud_k, loud_v = (torch.full_like(x, loud) for x in (q, k_cache, v_cache))
        loud_q[start:end], loud_k[own], loud_v[own] = q[start:end], k_cache[own], v_cache[own]
        assert torch.equal(run(loud_q, loud_k, loud_v)[start:end], quiet[start:end])


@pytest.mark.parametrize("loud", [1e4, math.inf, math.nan])
def test_norms_and_gates_beside_loud_neighbours(loud):
    x, residual, gate_up = torch.randn(9, 48), torch.randn(9, 48), torch.randn(9, 96)
    ops, weight = CpuOps(), torch.randn(48)

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, residual, gate_up = (value.clone() for value in values)
        return ops.rms_norm(x, weight, 1e-5), ops.silu_and_mul(gate_up), *ops.add_rms_norm(x, residual, weight, 1e-5)

    quiet = run(x, residual, gate_up)
    mixed = [torch.full_like(value, loud) for value in (x, residual, gate_up)]
    for value, own in zip(mixed, (x, residual, gate_up), strict=True):
        value[4] = own[4]
    alone = run(*(value[4:5] for value in (x, residual, gate_up)))
    for got, want, single in zip(run(*mixed), quiet, alone, strict=True):
        assert torch.equal(got[4], want[4])
        assert torch.equal(single[0], want[4])
