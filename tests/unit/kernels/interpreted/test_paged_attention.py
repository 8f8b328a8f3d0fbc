from dataclasses import replace

import pytest
import torch

from tests.unit.kernels.interpreted.attention_step import NAN, Step
from tests.unit.kernels.interpreted.near import assert_near, sparse

# Contexts around the block (16), the tile of keys (32) and their multiples.
CONTEXTS = [1, 15, 16, 17, 31, 32, 33, 64, 65]


@pytest.mark.parametrize("query", [1, 9], ids=lambda query: f"query{query}")
def test_every_context_length(ops, truth, query) -> None:
    step = Step.of([(min(query, context), context) for context in CONTEXTS], heads=2, kv_heads=1)
    assert_near(step.run(ops), step.exact(truth))


def test_whole_prompts_of_every_length(ops, truth) -> None:
    step = Step.of([(context, context) for context in CONTEXTS], heads=2, kv_heads=1)
    assert_near(step.run(ops), step.exact(truth))


# Groups that do and do not divide the rows of a tile, fill it, and exceed it.
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 1), (5, 1), (7, 1), (8, 1), (9, 3), (16, 1), (17, 1)])
def test_every_group(ops, truth, heads, kv_heads) -> None:
    step = Step.of([(1, 20), (5, 5), (2, 40)], heads=heads, kv_heads=kv_heads)
    assert_near(step.run(ops), step.exact(truth))


@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_every_head_dim(ops, truth, dtype, head_dim) -> None:
    step = Step.of([(1, 33), (5, 5)], heads=2, kv_heads=1, head_dim=head_dim, dtype=dtype)
    assert_near(step.run(ops), step.exact(truth))


@pytest.mark.parametrize("block_size", [1, 8, 32, 64, 128])
def test_every_block_size(ops, truth, block_size) -> None:
    step = Step.of([(1, 33), (5, 64), (3, 65)], heads=2, kv_heads=1, block_size=block_size)
    assert_near(step.run(ops), step.exact(truth))


@pytest.mark.parametrize("seed", range(2))
def test_mixed_batches(ops, truth, seed) -> None:
    torch.manual_seed(seed)
    lens = [(int(torch.randint(0, context + 1, ())), context) for context in torch.randint(1, 50, (5,)).tolist()]
    step = Step.of([*lens, (1, 50)], heads=6, kv_heads=2)
    assert_near(step.run(ops), step.exact(truth))


def test_sequences_without_queries_take_no_part(ops) -> None:
    quiet = Step.of([(2, 20), (3, 3)])
    padded = replace(
        quiet,
        query_start=torch.tensor([0, 0, 2, 2, 5, 5, 5], dtype=torch.int32),
        context_lens=torch.tensor([7, 20, 0, 3, 0, 0], dtype=torch.int32),
        block_tables=torch.stack(
            [
                quiet.block_tables[0] * 0,
                quiet.block_tables[0],
                quiet.block_tables[0] * 0,
                quiet.block_tables[1],
                *[quiet.block_tables[0] * 0] * 2,
            ]
        ),
    )
    assert torch.equal(padded.run(ops), quiet.run(ops))


@pytest.mark.parametrize("kv", [None, torch.int8], ids=["model", "int8"])
def test_a_row_without_context_is_zero(ops, kv) -> None:
    step = Step.of([(1, 9), (1, 1), (3, 9), (3, 3)])
    step = step if kv is None else step.quantized(kv)
    step.context_lens[1] = step.context_lens[3] = 0
    for window in (None, 2):
        out = replace(step, window=window).run(ops)
        assert not out.isnan().any()
        assert torch.equal(out[1], torch.zeros_like(out[1]))
        assert torch.equal(out[5:], torch.zeros_like(out[5:]))


def test_no_tokens(ops) -> None:
    assert Step.of([(0, 5)]).run(ops).shape == (0, 4, 32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the noise
def test_a_loud_neighbour_changes_nothing(ops) -> None:
    step = Step.of([(3, 40), (5, 21), (1, 33)])
    before = step.run(ops)[3:8]
    step.q[:3], step.q[8:] = NAN, 1e30
    for sequence, noise in [(0, NAN), (2, float("inf"))]:
        step.k_cache[step.block_tables[sequence].long()] = noise
        step.v_cache[step.block_tables[sequence].long()] = noise
    assert torch.equal(step.run(ops)[3:8], before)


def test_a_sequence_alone_and_in_a_batch_is_bitwise_the_same(ops) -> None:
    step = Step.of([(4, 50), (6, 23), (1, 70)])
    together = step.run(ops)
    for sequence, (start, stop) in enumerate([(0, 4), (4, 10), (10, 11)]):
        assert torch.equal(step.alone(sequence).run(ops), together[start:stop])


def test_a_prompt_in_chunks_gives_the_same(ops) -> None:
    whole = Step.of([(45, 45)], heads=2, kv_heads=1)
    expected = whole.run(ops)
    for start, stop in [(0, 8), (8, 40), (40, 45), (0, 1), (1, 20), (20, 45)]:
        chunk = replace(
            whole,
            q=whole.q[start:stop],
            query_start=torch.tensor([0, stop - start], dtype=torch.int32),
            context_lens=torch.tensor([stop], dtype=torch.int32),
        )
        assert_near(chunk.run(ops), expected[start:stop])


# Windows around the block (16), the tile of keys (32), of one key, and larger than any context.
@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 32, 33, 64, 1000])
def test_every_window(ops, truth, window) -> None:
    lens = [(min(query, context), context) for context in (1, 16, 33, 97) for query in (1, 40)]
    step = replace(Step.of(lens, heads=2, kv_heads=1), window=window)
    assert_near(step.run(ops), step.exact(truth))


def test_a_window_that_holds_the_context_is_bitwise_no_window(ops) -> None:
    step = Step.of([(1, 70), (40, 70)])
    assert torch.equal(replace(step, window=70).run(ops), step.run(ops))


def test_tiles_before_the_window_are_not_read(ops, truth) -> None:
    step = replace(Step.of([(3, 100)], heads=2, kv_heads=1), window=4)  # keys 94 to 99, in the tile from 64 on
    expected = step.exact(truth)
    for cache in (step.k_cache, step.v_cache):
        cache[step.block_tables[0, :4].long()] = NAN
    assert_near(step.run(ops), expected)


def test_a_windowed_prompt_in_chunks_gives_the_same(ops) -> None:
    whole = replace(Step.of([(90, 90)], heads=2, kv_heads=1), window=20)
    expected = whole.run(ops)
    for start, stop in [(0, 8), (8, 50), (50, 90), (89, 90)]:
        chunk = replace(
            whole,
            q=whole.q[start:stop],
            query_start=torch.tensor([0, stop - start], dtype=torch.int32),
            context_lens=torch.tensor([stop], dtype=torch.int32),
        )
        assert_near(chunk.run(ops), expected[start:stop])


def test_large_scores_do_not_overflow(ops, truth) -> None:
    step = Step.of([(1, 40), (4, 40)], dtype=torch.float32)
    step.q *= 1e4
    assert_near(step.run(ops), step.exact(truth))


# A cap far above the scores, near them, and far below them, where exp(2 x) of the hyperbolic tangent overflows.
@pytest.mark.parametrize(("cap", "loud"), [(50.0, 1.0), (2.0, 1.0), (0.5, 1e4)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's: exp overflows, as it should here
def test_soft_cap(ops, truth, cap, loud) -> None:
    step = replace(Step.of([(1, 40), (4, 40)], heads=2, kv_heads=1), soft_cap=cap)
    step.q *= loud
    assert_near(step.run(ops), step.exact(truth))
    assert (step.run(ops) - replace(step, soft_cap=None).run(ops)).abs().max() > 1e-5


# Pairwise: every two of head dim, block size, KV type, queries' type, window and cap meet somewhere.
@pytest.mark.parametrize(
    ("head_dim", "block_size", "kv", "dtype", "window", "cap"),
    [
        (64, 16, torch.int8, torch.float16, None, None),
        (64, 32, torch.float8_e4m3fn, torch.float32, 20, 3.0),
        (64, 64, None, torch.float16, 20, 3.0),
        (80, 16, torch.float8_e4m3fn, torch.float16, 20, None),
        (80, 32, None, torch.float32, None, 3.0),
        (80, 64, torch.int8, torch.float32, None, None),
        (96, 16, None, torch.float32, 20, None),
        (96, 32, torch.int8, torch.float16, 20, 3.0),
        (96, 64, torch.float8_e4m3fn, torch.float16, None, None),
        (128, 16, torch.float8_e4m3fn, torch.float32, None, 3.0),
        (128, 32, None, torch.float16, None, None),
        (128, 64, torch.int8, torch.float32, 20, None),
        (256, 16, torch.int8, torch.float32, 20, 3.0),
        (256, 32, torch.float8_e4m3fn, torch.float16, None, None),
        (256, 64, None, torch.float16, 20, 3.0),
    ],
)
def test_the_configurations_of_the_table(ops, truth, head_dim, block_size, kv, dtype, window, cap) -> None:
    step = Step.of([(1, 33), (4, 21)], heads=3, kv_heads=1, head_dim=head_dim, block_size=block_size, dtype=dtype)
    step = replace(step if kv is None else step.quantized(kv), window=window, soft_cap=cap)
    assert_near(step.run(ops), step.exact(truth))


@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
def test_values_of_zero_in_a_quantized_pool_give_zero(ops, kv) -> None:
    step = Step.of([(1, 20), (3, 20)])
    step.v_cache[step.v_cache.isfinite()] = 0.0
    step = step.quantized(kv)
    step.v_cache = step.v_cache.float().nan_to_num(0.0).to(kv)
    assert torch.equal(step.run(ops), torch.zeros_like(step.q))


def test_scales_of_more_than_two_to_the_31_elements(ops, truth) -> None:
    """All blocks are one block's memory; their scales are their own."""
    block_size, kv_heads, head_dim = 16, 2, 16
    blocks = 2**31 // (block_size * kv_heads) + 2
    block = torch.randint(-127, 128, (1, block_size, kv_heads, head_dim), dtype=torch.int8)
    scales = sparse(blocks * block_size * kv_heads, torch.float32).view(blocks, block_size, kv_heads)
    scales[1], scales[-1] = torch.rand(2, block_size, kv_heads) / 127
    step = Step.of([(1, 32), (3, 32)], head_dim=head_dim)
    step.block_tables = torch.tensor([[1, blocks - 1]] * 2, dtype=torch.int32)
    step.k_cache = step.v_cache = block.expand(blocks, -1, -1, -1)
    step.k_scale = step.v_scale = scales
    assert_near(step.run(ops), step.exact(truth))


def test_a_bound_of_one_query_launches_less_and_changes_nothing(ops) -> None:
    step = Step.of([(1, 20), (1, 33)])
    assert torch.equal(step.run(ops, queries_max=1), step.run(ops))


def test_it_reads_strided_views(ops, truth) -> None:
    step = Step.of([(1, 20), (4, 33)])
    qkv = torch.full((5, 8, 32), NAN)
    qkv[:, 2:6] = step.q
    tables = torch.full((2, 9), 7777, dtype=torch.int32)
    tables[:, :3] = step.block_tables
    layers = torch.stack([step.k_cache, step.v_cache], dim=1)  # [blocks, 2, block_size, kv_heads, head_dim]
    views = replace(step, q=qkv[:, 2:6], k_cache=layers[:, 0], v_cache=layers[:, 1], block_tables=tables[:, :3])
    assert_near(views.run(ops), step.exact(truth))


def test_a_pool_of_more_than_two_to_the_31_elements(ops, truth) -> None:
    step = Step.of([(1, 40), (3, 20)], dtype=torch.float16)
    blocks = step.k_cache.shape[0]
    shape, per_block = step.k_cache.shape, step.k_cache[0].numel()
    block_stride = 2**31 // (blocks - 1) + per_block
    far = [
        sparse(block_stride * (blocks - 1) + per_block).as_strided(shape, (block_stride, *step.k_cache.stride()[1:]))
        for _ in range(2)
    ]
    far[0].copy_(step.k_cache)
    far[1].copy_(step.v_cache)
    assert_near(replace(step, k_cache=far[0], v_cache=far[1]).run(ops), step.exact(truth))


@pytest.mark.parametrize("lens", [[(3, 20)], [(1, 5), (1, 16), (1, 20)]], ids=["chunk", "decodes"])
def test_queries_beyond_two_to_the_31_elements(ops, truth, lens) -> None:
    step = Step.of(lens, dtype=torch.float16)
    stride = 2**30 + 64  # fits in 32 bits, as two of it do not
    far = sparse(2 * stride + 128).as_strided(step.q.shape, (stride, *step.q.stride()[1:]))
    far.copy_(step.q)
    assert_near(replace(step, q=far).run(ops), step.exact(truth))


@pytest.mark.parametrize("pool", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("queries", [1, 3])
def test_whoever_sees_a_head_without_a_number_finds_none(ops, pool, name, queries) -> None:
    step = Step.of([(queries, 20), (queries, 20)]).quantized(pool)
    getattr(step, name)[step.block_tables[0, 0].long(), 4, 0] = NAN
    out = step.run(ops)
    assert out[:queries, :2].isnan().all()  # of the KV head's two query heads
    assert out[:queries, 2:].isfinite().all()
    assert out[queries:].isfinite().all()
