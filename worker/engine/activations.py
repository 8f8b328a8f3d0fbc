"""The memory that the largest steps take on a CUDA device beside weights and KV pool, measured by running them.

Invariant: nothing of it stays on the device afterwards except compiled code.
"""

import gc
from dataclasses import replace

import torch

from worker.engine.graph_runner import GraphRunner, Sizes
from worker.engine.graphs import EagerGraphs
from worker.models.decoder import Decoder

BLOCKS_LEAST = 2


def activation_bytes(decoder: Decoder, sizes: Sizes, kv_dtype: torch.dtype) -> int:
    """The most that any step takes of those that a runner warms up with, its own buffers included."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    _run(decoder, sizes, kv_dtype)
    peak = torch.cuda.max_memory_allocated() - before
    gc.collect()  # a runner and its steps form a cycle: until it is collected, its buffers count as in use
    torch.cuda.empty_cache()
    return peak


def _run(decoder: Decoder, sizes: Sizes, kv_dtype: torch.dtype) -> None:
    runner = GraphRunner(decoder, replace(sizes, blocks_total=BLOCKS_LEAST), EagerGraphs(), kv_dtype=kv_dtype)
    runner.warm_up()
    torch.cuda.synchronize()
