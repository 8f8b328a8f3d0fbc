"""The KV pool on a CPU."""

import psutil
import torch

from kernels.cpu import CpuOps
from tests.unit.models.tiny import CONTEXT, Recipe
from worker.engine.torch_runner import TorchRunner
from worker.models.load import load_model

BLOCKS, BLOCK_SIZE = 65_536, 16  # 512 MiB for the tiny model


def test_a_pool_takes_memory_only_where_something_is_written(tmp_path):
    model = load_model(Recipe().write(tmp_path / "m.gguf"), "fp32")
    TorchRunner(model, CpuOps(), blocks_total=2, block_size=BLOCK_SIZE).close()  # what is compiled is compiled
    before = psutil.Process().memory_info().rss
    runner = TorchRunner(model, CpuOps(), blocks_total=BLOCKS, block_size=BLOCK_SIZE)
    assert runner.context_length == CONTEXT
    assert psutil.Process().memory_info().rss - before < 64 * 2**20
    last = runner._pool.values[-1][-1]
    assert torch.count_nonzero(last) == 0
    last += 1.0
    assert torch.count_nonzero(runner._pool.values[-1][-2:]) == last.numel()
    runner.close()


def test_a_context_of_millions_takes_memory_for_what_the_pool_holds(tmp_path):
    model = load_model(Recipe(extra={"llama.context_length": 2**22}).write(tmp_path / "m.gguf"), "fp32")
    TorchRunner(model, CpuOps(), blocks_total=2, block_size=BLOCK_SIZE).close()
    before = psutil.Process().memory_info().rss
    runner = TorchRunner(model, CpuOps(), blocks_total=4, block_size=BLOCK_SIZE)
    assert runner.context_length == 2**22
    assert psutil.Process().memory_info().rss - before < 64 * 2**20
    runner.close()
