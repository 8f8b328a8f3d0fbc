from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.unit.kernels.interpreted.near import assert_near, sparse

NAN = float("nan")
CONTEXT = 64
BLOCK_SIZE = 4


@dataclass
class Step:
    """One call's arguments."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    positions: list[int]
    slots: list[int]
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None

    def run(self, ops) -> Tensor:
        half = self.q.shape[2] // 2
        angle = torch.arange(CONTEXT)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        return ops.rope_and_cache(
            self.q,
            self.k,
            self.v,
            cos=angle.cos(),
            sin=angle.sin(),
            positions=torch.tensor(self.positions, dtype=torch.int64),
            k_cache=self.k_cache,
            v_cache=self.v_cache,
            slots=torch.tensor(self.slots, dtype=torch.int64),
            k_scale=self.k_scale,
            v_scale=self.v_scale,
            q_norm=self.q_norm,
            k_norm=self.k_norm,
            norm_eps=1e-6,
        )

    def exact(self, truth) -> tuple[Tensor, Tensor, Tensor]:
        """What becomes of q, and of k and v ([tokens, kv_heads, head_dim]): the reference, into a pool of its own."""
        q, k, v = (x.float().clone() for x in (self.q, self.k, self.v))
        k_cache, v_cache = torch.zeros(2, 1, *k.shape)
        slots = list(range(len(self.slots)))
        own = replace(self, q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, slots=slots)
        return own.run(truth), k_cache[0], v_cache[0]


def pools(kv_heads: int, head_dim: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Five blocks full of NaN, so that a slot that was not written, or wrongly, shows."""
    nan = torch.full((5, BLOCK_SIZE, kv_heads, head_dim), float("nan"), dtype=dtype)
    return nan, nan.clone()


@pytest.mark.parametrize("shape", [(1, 1, 2), (4, 4, 16), (9, 3, 64), (5, 1, 80), (7, 1, 96), (8, 2, 128)])
def test_it_agrees_with_the_reference(ops, truth, dtype, shape) -> None:
    heads, kv_heads, head_dim = shape
    qkv = torch.randn(4, heads + 2 * kv_heads, head_dim).to(dtype)  # one projection's output: q, k and v are strided
    q, k, v = qkv.split([heads, kv_heads, kv_heads], dim=1)
    slots = [4, 7, 19, -1]  # first and last of a block, last of the pool, none
    step = Step(q, k, v, *pools(kv_heads, head_dim, dtype), positions=[0, 1, 63, 17], slots=slots)
    exact_q, exact_k, exact_v = step.exact(truth)
    assert_near(step.run(ops), exact_q)
    for cache, exact in [(step.k_cache, exact_k), (step.v_cache, exact_v)]:
        by_slot = cache.view(-1, kv_heads, head_dim)
        assert_near(by_slot[slots[:3]], exact[:3])
        untouched = [slot for slot in range(len(by_slot)) if slot not in slots]
        assert by_slot[untouched].isnan().all()


@pytest.mark.parametrize("shape", [(1, 1, 2), (9, 3, 64), (5, 1, 80)])
def test_heads_are_normed_before_they_are_turned(ops, truth, dtype, shape) -> None:
    heads, kv_heads, head_dim = shape
    q, k, v = (torch.randn(3, count, head_dim).to(dtype) * 4 for count in (heads, kv_heads, kv_heads))
    q_norm, k_norm = torch.rand(2, head_dim).to(dtype) + 0.5
    slots = [4, 7, 19]
    step = Step(q, k, v, *pools(kv_heads, head_dim, dtype), [0, 5, 63], slots, q_norm=q_norm, k_norm=k_norm)
    exact_q, exact_k, exact_v = step.exact(truth)
    assert_near(step.run(ops), exact_q)
    for cache, exact in [(step.k_cache, exact_k), (step.v_cache, exact_v)]:
        assert_near(cache.view(-1, kv_heads, head_dim)[slots], exact)


@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.parametrize("head_dim", [64, 80])
def test_quantization_on_write_gives_the_bytes_of_the_reference(ops, truth, kv, head_dim, normed) -> None:
    """Among them a head of zeros, one of tiny numbers and one of large ones. Positions 0: rotation rounds nothing."""
    q, k, v = torch.randn(3, 5, 2, head_dim)
    k[1], k[2, 0], k[3], v[2, 1], v[3] = 0, k[2, 0] * 1e-30, k[3] * 1e4, 0, v[3] * 1e4
    slots = [4, -1, 7, 18, 19]
    norms = {"q_norm": torch.ones(head_dim), "k_norm": torch.ones(head_dim)} if normed else {}
    ours, exact = (
        Step(
            q.clone(),
            k,
            v,
            *torch.full((2, 5, BLOCK_SIZE, 2, head_dim), 7.0).to(kv),
            [0] * 5,
            slots,
            *torch.full((2, 5, BLOCK_SIZE, 2), NAN),
            **norms,
        )
        for _ in range(2)
    )
    assert_near(ours.run(ops), exact.run(truth))
    for actual, expected in [(ours.k_scale, exact.k_scale), (ours.v_scale, exact.v_scale)]:
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-6, atol=0)
        written = ~actual.view(-1, 2).isnan().any(1)
        assert written.nonzero().flatten().tolist() == sorted(set(slots) - {-1})
    # A norm is a last bit off now and then, and so may be what lies half way between two bytes.
    off = 0.02 * head_dim if normed else 0
    for actual, expected in [(ours.k_cache, exact.k_cache), (ours.v_cache, exact.v_cache)]:
        assert (actual.view(torch.int8) != expected.view(torch.int8)).sum() <= off


def test_every_float8_is_written_and_read_as_torch_does(ops, truth) -> None:
    """All finite bytes, what lies half way between two of them, and numbers below the smallest."""
    finite = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    values = torch.cat((finite, (finite[1:] + finite[:-1]) / 2, torch.tensor([1e-4, 448.0]), -finite))
    v = torch.zeros(1, 1, 512)
    v[0, 0, : len(values)] = values
    kv = [torch.zeros(1, 1, 1, 512).to(torch.float8_e4m3fn) for _ in range(2)]
    step = Step(v.clone(), v, v, *kv, [0], [0], *torch.zeros(2, 1, 1, 1))
    step.run(ops)
    assert step.v_scale.item() == 1.0
    assert torch.equal(step.v_cache.flatten().view(torch.uint8), v.flatten().to(torch.float8_e4m3fn).view(torch.uint8))


def test_scales_without_a_quantized_pool_are_refused(ops) -> None:
    step = Step(*torch.randn(3, 1, 2, 16), *pools(2, 16), [0], [0], *torch.zeros(2, 5, BLOCK_SIZE, 2))
    with pytest.raises(ValueError, match=r"k_scale: .* a pool of 8 bits"):
        step.run(ops)


def test_tokens_without_slots_leave_the_pool_alone(ops) -> None:
    step = Step(*torch.randn(3, 2, 2, 16), *pools(2, 16), positions=[CONTEXT - 1, 0], slots=[-1, -1])
    assert not step.run(ops).isnan().any()
    assert step.k_cache.isnan().all()
    assert step.v_cache.isnan().all()


def test_a_loud_neighbour_changes_nothing(ops) -> None:
    quiet = Step(*torch.randn(3, 1, 2, 16), *pools(2, 16), positions=[9], slots=[5])
    loud = Step(*torch.full((3, 2, 2, 16), float("nan")), *pools(2, 16), positions=[8, 9], slots=[4, 5])
    for x, kept in [(loud.q, quiet.q), (loud.k, quiet.k), (loud.v, quiet.v)]:
        x[1] = kept[0]
    assert torch.equal(quiet.run(ops)[0], loud.run(ops)[1])
    assert torch.equal(quiet.k_cache[1, 1], loud.k_cache[1, 1])
    assert torch.equal(quiet.v_cache[1, 1], loud.v_cache[1, 1])


def test_no_tokens(ops) -> None:
    step = Step(*torch.empty(3, 0, 2, 16), *pools(2, 16), positions=[], slots=[])
    assert step.run(ops).shape == (0, 2, 16)


def test_pools_of_more_than_two_to_the_31_elements(ops, truth) -> None:
    kv_heads, head_dim = 8, 256
    blocks = 2**31 // (BLOCK_SIZE * kv_heads * head_dim) + 1
    shape = (blocks, BLOCK_SIZE, kv_heads, head_dim)
    caches = (sparse(blocks * BLOCK_SIZE * kv_heads * head_dim).view(shape) for _ in range(2))
    qkv = torch.randn(3, 1, kv_heads, head_dim).half()
    step = Step(*qkv, *caches, positions=[5], slots=[blocks * BLOCK_SIZE - 1])
    _, exact_k, exact_v = step.exact(truth)
    step.run(ops)
    assert_near(step.k_cache[-1, -1], exact_k[0])
    assert_near(step.v_cache[-1, -1], exact_v[0])


def test_scales_of_more_than_two_to_the_31_elements(ops) -> None:
    kv_heads, head_dim = 2, 16
    blocks = 2**31 // (BLOCK_SIZE * kv_heads) + 1
    block = torch.zeros(1, BLOCK_SIZE, kv_heads, head_dim, dtype=torch.int8)  # every block's
    scales = sparse(blocks * BLOCK_SIZE * kv_heads, torch.float32).view(blocks, BLOCK_SIZE, kv_heads)
    q, k, v = torch.randn(3, 1, kv_heads, head_dim)
    caches = (block.expand(blocks, -1, -1, -1), block.clone().expand(blocks, -1, -1, -1))
    step = Step(q, k, v, *caches, positions=[0], slots=[blocks * BLOCK_SIZE - 1], k_scale=scales, v_scale=scales)
    step.run(ops)
    torch.testing.assert_close(scales[-1, -1], v[0].abs().amax(-1) / 127)  # V's are written last
    assert not scales[0].any()


def test_projections_of_more_than_two_to_the_31_elements(ops, truth) -> None:
    stride = 2**30 + 64  # fits in 32 bits, as two of it do not
    q, k, v = (sparse(2 * stride + 16).as_strided((3, 1, 16), (stride, 16, 1)) for _ in range(3))
    for x in (q, k, v):
        x.copy_(torch.randn(3, 1, 16))
    step = Step(q, k, v, *pools(1, 16, torch.float16), positions=[3, 4, 5], slots=[4, 5, 6])
    exact_q, exact_k, exact_v = step.exact(truth)
    assert_near(step.run(ops), exact_q)
    assert_near(step.k_cache[1, :3], exact_k)
    assert_near(step.v_cache[1, :3], exact_v)


@pytest.mark.parametrize("pool", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize(("place", "value"), [(0, NAN), (15, NAN), (3, float("inf"))])
def test_what_is_not_finite_is_not_taken_for_a_number_in_a_quantized_pool(ops, truth, pool, place, value) -> None:
    """In the scale of that head alone, as in the reference."""
    qkv = torch.randn(3, 2, 2, 16)
    qkv[1:, 0, 1, place] = value
    steps = [
        Step(
            *qkv.clone(),
            *torch.zeros(2, 5, BLOCK_SIZE, 2, 16).to(pool),
            [3, 4],
            [6, 7],
            *torch.zeros(2, 5, BLOCK_SIZE, 2),
        )
        for _ in range(2)
    ]
    for step, own in zip(steps, (ops, truth), strict=True):
        step.run(own)
        for scale in (step.k_scale, step.v_scale):
            assert scale is not None
            assert scale.isfinite().logical_not().nonzero().tolist() == [[1, 2, 1]]
