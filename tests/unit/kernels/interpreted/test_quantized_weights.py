"""A decoder whose weights are in few bits, multiplied by the kernels: its logits stay near those of whole weights."""

import pytest
import torch

from bench.gpu.accuracy import error_ratio
from kernels.quantized_matmul import ROWS_MAX
from kernels.reference import ReferenceOps
from tests.unit.kernels.interpreted.test_quantized_pool import run
from tests.unit.models import tiny
from worker.models import device_linear
from worker.models.device_packer import DeviceMode, DevicePacker
from worker.models.load import LoadedModel, _open
from worker.models.weights import load_weights

CPU = torch.device("cpu")


def model(path, mode: DeviceMode) -> LoadedModel:
    card, source = _open(path)
    pack = DevicePacker(mode, torch.float32)
    weights = load_weights(source, card.config, dtype=torch.float32, device=CPU, pack=pack)
    return LoadedModel(card, weights, torch.float32, CPU)


@pytest.mark.parametrize(("mode", "bound"), [("int8", 0.03), ("int4", 0.3), ("fp8", 0.2)])
def test_logits_stay_near_those_of_whole_weights(tmp_path, mode, bound):
    path = tiny.Recipe().write(tmp_path / "tiny.gguf")
    exact, rounded = (run(model(path, each), ReferenceOps(), torch.float32)[0] for each in ("auto", mode))
    assert 1e-4 < error_ratio(rounded, exact) < bound


@pytest.mark.parametrize(("mode", "error"), [("int8", 0.01), ("int4", 0.12), ("fp8", 0.05)])
def test_few_rows_and_many_are_near_what_whole_weights_say(mode, error, monkeypatch):
    """The latter from three slices, of which the last is short."""
    monkeypatch.setattr(device_linear, "SLICE_ELEMENTS", 16 * 64)
    weight, bias, x = torch.randn(40, 64), torch.randn(40), torch.randn(ROWS_MAX + 1, 64)
    layer = DevicePacker(mode, torch.float32)(weight, bias)
    exact = x @ weight.T + bias
    few, many = layer(x[:3].clone()), layer(x)
    assert 1e-4 < error_ratio(many, exact) < error
    assert 1e-4 < error_ratio(few, exact[:3]) < error
    if mode != "fp8":  # where few rows are rounded themselves
        torch.testing.assert_close(few, many[:3], rtol=1e-4, atol=1e-4)
