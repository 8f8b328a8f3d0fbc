import pytest
import torch

from kernels.rms_norm import HIDDEN_MAX
from tests.unit.kernels.interpreted.near import assert_near, sparse

EPS = 1e-5


# Around powers of two, the demo model's width, and one column.
@pytest.mark.parametrize("hidden", [1, 15, 16, 17, 576, 1024, 1025])
@pytest.mark.parametrize("tokens", [1, 3])
def test_it_agrees_with_the_reference(ops, truth, dtype, tokens, hidden) -> None:
    x, weight = torch.randn(tokens, hidden).to(dtype), torch.randn(hidden).to(dtype)
    assert_near(ops.rms_norm(x, weight, EPS), truth.rms_norm(x.float(), weight.float(), EPS))


def test_the_sum_of_squares_of_half_floats_does_not_overflow(ops, truth) -> None:
    x, weight = torch.full((1, 64), 300.0, dtype=torch.float16), torch.ones(64, dtype=torch.float16)
    assert_near(ops.rms_norm(x, weight, EPS), truth.rms_norm(x.float(), weight.float(), EPS))


def test_the_widest_rows_with_weights_of_another_type(ops, truth) -> None:
    x, residual = torch.randn(2, 2, HIDDEN_MAX).half()
    weight = torch.randn(HIDDEN_MAX)
    assert_near(ops.rms_norm(x, weight, EPS), truth.rms_norm(x.float(), weight, EPS))
    expected_sum = x + residual
    y, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, expected_sum)
    assert_near(y, truth.rms_norm(expected_sum.float(), weight, EPS))


def test_a_row_of_zeros_stays_zero(ops) -> None:
    assert torch.equal(ops.rms_norm(torch.zeros(2, 8), torch.ones(8), EPS), torch.zeros(2, 8))


@pytest.mark.parametrize("tokens", [1, 4])
def test_addition_of_the_residual(ops, truth, dtype, tokens) -> None:
    x, residual, weight = (torch.randn(size).to(dtype) for size in [(tokens, 72), (tokens, 72), (72,)])
    expected_sum = x + residual
    expected = truth.rms_norm(expected_sum.float(), weight.float(), EPS)
    y, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, expected_sum)
    assert_near(y, expected)


def test_the_norm_is_of_the_sum_as_it_is_kept(ops) -> None:
    """Bit by bit: of the sum before it is rounded, every other element would end on another float16."""
    x, residual, weight = (torch.randn(size).half() for size in [(2, 72), (2, 72), (72,)])
    y, total = ops.add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(y, ops.rms_norm(total, weight, EPS))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, about the noise
def test_a_loud_neighbour_changes_nothing(ops) -> None:
    x, weight = torch.randn(3, 40), torch.randn(40)
    alone = ops.rms_norm(x[1:2], weight, EPS)
    x[0], x[2] = float("nan"), 1e30
    assert torch.equal(ops.rms_norm(x, weight, EPS)[1:2], alone)


def test_no_tokens(ops) -> None:
    empty = torch.empty(0, 8)
    assert ops.rms_norm(empty, torch.ones(8), EPS).shape == (0, 8)
    assert ops.add_rms_norm(empty, empty, torch.ones(8), EPS)[0].shape == (0, 8)


def test_rows_beyond_two_to_the_31_elements(ops, truth) -> None:
    stride = 2**30 + 64  # fits in 32 bits, as two of it do not
    x = sparse(2 * stride + 64).as_strided((3, 64), (stride, 1))
    x.copy_(torch.randn(3, 64))
    near_x, weight = x.clone(), torch.ones(64, dtype=torch.float16)
    assert_near(ops.rms_norm(x, weight, EPS), truth.rms_norm(near_x.float(), weight.float(), EPS))
    y, total = ops.add_rms_norm(x, x.clone(), weight, EPS)
    assert torch.equal(total, near_x + near_x)
    assert_near(y, truth.rms_norm((near_x + near_x).float(), weight.float(), EPS))
