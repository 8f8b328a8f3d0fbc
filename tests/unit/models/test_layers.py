import pytest
import torch

from worker.models.layers import PackedLinear, PlainLinear, linear, packing_works

CPU = torch.device("cpu")


@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_packed_equals_plain(rows):
    if not packing_works(CPU, torch.float32):
        pytest.skip("this build of torch has no packed layers")
    weight, x = torch.randn(96, 64), torch.randn(rows, 64)
    torch.testing.assert_close(PackedLinear(weight)(x), PlainLinear(weight)(x), rtol=1e-5, atol=1e-5)


def test_float32_is_packed_exactly_where_that_works():
    packed = isinstance(linear(torch.randn(8, 8)), PackedLinear)
    assert packed == packing_works(CPU, torch.float32)


def test_without_the_internal_operations_layers_are_plain(monkeypatch):
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert not packing_works(CPU, torch.float32)
    assert isinstance(linear(torch.randn(8, 8)), PlainLinear)


def test_operations_that_answer_otherwise_are_not_used(monkeypatch):
    real = torch.ops.mkldnn

    class Changed:
        _reorder_linear_weight = real._reorder_linear_weight

        @staticmethod
        def _linear_pointwise(*arguments):
            return real._linear_pointwise(*arguments) * 2

    monkeypatch.setattr(torch.ops, "mkldnn", Changed)
    assert not packing_works(CPU, torch.float32)
