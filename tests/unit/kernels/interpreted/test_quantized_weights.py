"""A decoder whose weights are in few bits, multiplied by the kernels: its logits stay near those of whole weights."""

import pytest
import torch
from torch import Tensor

from bench.gpu.accuracy import error_ratio
from kernels.quantized_matmul import ROWS_MAX
from kernels.reference import ReferenceOps
from tests.unit.kernels.interpreted.test_quantized_pool import run
from tests.unit.models import tiny
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


def test_few_rows_and_many_say_the_same():
    """But for E4M3, whose activations are rounded too where there are few rows."""
    layer = DevicePacker("int4", torch.float32)(torch.randn(20, 64), torch.randn(20))
    x = torch.randn(ROWS_MAX + 1, 64)
    some: Tensor = layer(x[:3].clone())
    torch.testing.assert_close(some, layer(x)[:3], rtol=1e-4, atol=1e-4)
