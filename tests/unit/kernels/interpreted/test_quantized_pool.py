"""A decoder on the kernels with a pool in eight bits, against plain torch with one in float32: the logits stay near."""

import pytest
import torch
from torch import Tensor

from bench.gpu.accuracy import error_ratio
from kernels.ops import Ops
from kernels.reference import ReferenceOps
from kernels.triton_ops import TritonOps
from tests.unit.models import tiny
from worker.engine.kv_pool import kv_pool
from worker.models.decoder import Decoder, KvPool, StepTensors
from worker.models.load import LoadedModel, load_model

BLOCK_SIZE = 4
TABLE = [2, 1]
IDS = list(range(2, 9))


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> LoadedModel:
    return load_model(tiny.Recipe().write(tmp_path_factory.mktemp("model") / "tiny.gguf"), "fp32", weights="fp32")


def run(model: LoadedModel, ops: Ops, dtype: torch.dtype) -> tuple[Tensor, KvPool]:
    """Logits [tokens, vocab] of `IDS`: a prompt, of which decodes then read what was written."""
    decoder = Decoder(model.config, model.weights, ops)
    pool = kv_pool(model.config, blocks_total=3, block_size=BLOCK_SIZE, dtype=dtype, device=torch.device("cpu"))
    logits: list[Tensor] = []
    for positions in torch.arange(len(IDS)).split([5, 1, 1]):
        done = int(positions[-1]) + 1
        step = StepTensors(
            ids=torch.tensor(IDS)[positions],
            positions=positions,
            slots=torch.tensor(TABLE)[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
            query_start=torch.tensor([0, len(positions)], dtype=torch.int32),
            context_lens=torch.tensor([done], dtype=torch.int32),
            block_tables=torch.tensor([TABLE], dtype=torch.int32),
            sample_rows=torch.arange(len(positions)),
        )
        logits.append(decoder.forward(step, pool))
    return torch.cat(logits), pool


@pytest.mark.parametrize(("dtype", "bound"), [(torch.int8, 0.02), (torch.float8_e4m3fn, 0.06)])
def test_logits_stay_near_those_of_an_exact_pool(model, dtype, bound):
    exact, _ = run(model, ReferenceOps(), torch.float32)
    rounded, pool = run(model, TritonOps(), dtype)
    assert 1e-4 < error_ratio(rounded, exact) < bound
    assert pool.key_scales is not None
    assert all((scales[TABLE[0]] > 0).all() for scales in pool.key_scales), "no scale was written"
