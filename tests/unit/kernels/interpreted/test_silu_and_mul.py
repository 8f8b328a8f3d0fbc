import pytest
import torch

from tests.unit.kernels.interpreted.near import assert_near, sparse


# Around the width of one program (1024), and the demo model's own width.
@pytest.mark.parametrize("intermediate", [1, 7, 64, 1023, 1024, 1025, 1536])
@pytest.mark.parametrize("tokens", [1, 3])
def test_it_agrees_with_the_reference(ops, truth, dtype, tokens, intermediate) -> None:
    gate_up = torch.randn(tokens, 2 * intermediate).to(dtype)
    assert_near(ops.silu_and_mul(gate_up), truth.silu_and_mul(gate_up.float()))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's: exp overflows, as it should here
def test_extreme_gates_saturate(ops) -> None:
    gate_up = torch.tensor([[-1000.0, 1000.0, 0.0, 2.0, 2.0, 2.0]])
    assert torch.equal(ops.silu_and_mul(gate_up), torch.tensor([[0.0, 2000.0, 0.0]]))


def test_a_loud_neighbour_changes_nothing(ops) -> None:
    gate_up = torch.randn(3, 20)
    alone = ops.silu_and_mul(gate_up[1:2])
    gate_up[0], gate_up[2] = float("nan"), float("inf")
    assert torch.equal(ops.silu_and_mul(gate_up)[1:2], alone)


def test_no_tokens(ops) -> None:
    assert ops.silu_and_mul(torch.empty(0, 8)).shape == (0, 4)


def test_rows_beyond_two_to_the_31_elements(ops, truth) -> None:
    stride = 2**30 + 64  # fits in 32 bits, as two of it do not
    gate_up = sparse(2 * stride + 64).as_strided((3, 64), (stride, 1))
    gate_up.copy_(torch.randn(3, 64))
    assert_near(ops.silu_and_mul(gate_up), truth.silu_and_mul(gate_up.float()))
