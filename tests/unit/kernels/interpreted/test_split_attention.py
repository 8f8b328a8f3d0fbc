import math
from dataclasses import replace

import pytest
import torch

from kernels.attention_scratch import SPLIT_KEYS, AttentionScratch
from kernels.split_attention import programs_each, reduce_splits, split_attention
from tests.unit.kernels.interpreted.attention_step import NAN, Step, call_of, scratch_of
from tests.unit.kernels.interpreted.near import assert_near, sparse


def long(lens) -> Step:
    return Step.of(lens, heads=2, kv_heads=1, head_dim=16, block_size=64)


# Windows that begin in a split, at one, and with its last key.
@pytest.mark.parametrize("window", [None, 2, SPLIT_KEYS, SPLIT_KEYS + 1])
def test_contexts_around_a_split(ops, truth, window) -> None:
    contexts = [SPLIT_KEYS, SPLIT_KEYS + 1]
    step = replace(long([(1, context) for context in contexts]), window=window)
    assert_near(step.run(ops), step.exact(truth))


@pytest.mark.parametrize("kv", [torch.int8, torch.float8_e4m3fn])
def test_a_quantized_pool_in_splits(ops, truth, kv) -> None:
    step = replace(long([(1, 520)]).quantized(kv), soft_cap=2.0)
    assert_near(step.run(ops), step.exact(truth))


# As many splits as are added at once (16), one more, and two rounds of them from the second split on, with a window.
@pytest.mark.parametrize(("splits", "window"), [(16, None), (17, None), (32, 30 * SPLIT_KEYS + 1)])
def test_many_splits_are_added_up(splits, window) -> None:
    step = replace(long([(1, 3), (1, splits * SPLIT_KEYS)]), window=window)
    call, scratch = call_of(step), scratch_of(2, 40 * SPLIT_KEYS, NAN)
    first = 0 if window is None else 1
    parts, weights = torch.randn(2, splits - first, 16), torch.randn(2, splits - first) * 20
    scratch.out[1, :, first:splits], scratch.weight_log2[1, :, first:splits] = parts, weights
    reduce_splits(call, scratch)
    expected = torch.einsum("hs,hsd->hd", (weights * math.log(2)).softmax(-1), parts)
    assert_near(call.out[1], expected)
    assert torch.equal(call.out[0], torch.zeros(2, 16))  # it sees one split, and is left alone


def test_which_program_takes_a_split_changes_no_bit() -> None:
    step = long([(1, SPLIT_KEYS + 40)])
    results = []
    for programs in (1, 2):
        call = call_of(step)
        split_attention(call, call.tiles()[0], None, programs)
        results.append(call.out)
    assert all(torch.equal(result, results[0]) for result in results)


def test_few_sequences_get_many_programs_and_many_a_few() -> None:
    assert programs_each(1, 8) == 512
    assert programs_each(256, 8) == programs_each(4096, 8) == 4


def test_a_long_sequence_is_bitwise_the_same_alone_and_beside_others(ops) -> None:
    step = long([(1, 520), (3, 20), (1, 20), (1, 540)])
    together = step.run(ops)
    for sequence, row in [(0, 0), (2, 4), (3, 5)]:
        assert torch.equal(step.alone(sequence).run(ops), together[row : row + 1])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the noise
def test_a_loud_neighbour_changes_nothing(ops) -> None:
    step = long([(1, 520), (1, 520)])
    before = step.run(ops)[1]
    step.q[0] = NAN
    assert torch.equal(step.run(ops)[1], before)


def test_a_scratch_that_is_larger_and_full_of_nan_changes_nothing(ops) -> None:
    step = long([(1, 520), (1, 0), (1, 30)])
    given = step.run(ops, scratch=scratch_of(5, 4 * SPLIT_KEYS, NAN))
    assert torch.equal(given, step.run(ops))


@pytest.mark.parametrize(("sequences", "context"), [(1, 1024), (2, 512)])
def test_a_scratch_that_is_too_small_is_refused(ops, sequences, context) -> None:
    with pytest.raises(ValueError, match="scratch: the kernel takes 2 sequences of 2 splits or more"):
        long([(1, 520), (1, 30)]).run(ops, scratch=scratch_of(sequences, context, 0.0))


def test_a_scratch_of_more_than_two_to_the_31_elements(ops) -> None:
    step = long([(1, 30), (1, 40), (1, 520)])
    splits_max = 2**31 // (2 * 2 * 16) + 1  # the third sequence's parts begin beyond
    far = AttentionScratch(
        out=sparse(3 * 2 * splits_max * 16, torch.float32).view(3, 2, splits_max, 16),
        weight_log2=sparse(3 * 2 * splits_max, torch.float32).view(3, 2, splits_max),
    )
    assert torch.equal(step.run(ops, scratch=far), step.run(ops))


def test_the_memory_that_a_scratch_takes() -> None:
    scratch = scratch_of(3, 2 * SPLIT_KEYS + 1, 0.0)
    assert scratch.out.nbytes + scratch.weight_log2.nbytes == AttentionScratch.bytes_needed(
        3, 2 * SPLIT_KEYS + 1, 2, 16
    )
