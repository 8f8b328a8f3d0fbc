"""Runs a decoder over batches with torch: owns the KV pool and the way from numpy to the device.

Knows no request and no schedule. The same class serves the CPU and CUDA; only the operations differ.
"""

import math
import mmap
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.ops import Ops
from worker.engine.batch import Batch, Sampled
from worker.engine.sampler import sample
from worker.models.config import ModelConfig
from worker.models.decoder import KvPool, StepTensors
from worker.models.load import LoadedModel
from worker.models.whole_layers import decoder

WARM_TOKENS = (1, 8)  # of one sequence, written to the null block


class TorchRunner:
    """Implements `worker.engine.runner.Runner`."""

    def __init__(self, model: LoadedModel, ops: Ops, *, blocks_total: int, block_size: int) -> None:
        config = model.config
        self.vocab_size = config.vocab_size
        self.context_length = config.context_length
        self.steps_ahead = 0
        self.block_size = block_size
        self.blocks_total = blocks_total
        self._device = model.device
        # No sequence is longer than the pool: a context of a million tokens must not need tables for all its positions.
        held = max(blocks_total * block_size, *WARM_TOKENS)
        reached = replace(config, context_length=min(config.context_length, held))
        self._decoder = decoder(reached, model.weights, ops)
        shape = (blocks_total, block_size, config.kv_heads, config.head_dim)
        dtype = kv_dtype(model.device, model.dtype)
        self._pool = KvPool(
            keys=[_zeros(shape, dtype, model.device) for _ in range(config.layers)],
            values=[_zeros(shape, dtype, model.device) for _ in range(config.layers)],
        )
        self._warm_up()

    def _warm_up(self) -> None:
        """Run steps of one and of several rows that write nothing, so that everything compiled on first call is
        compiled now.
        """
        for tokens in WARM_TOKENS:
            sequence = np.array([0, tokens], np.int32)
            self._decoder.forward(
                StepTensors(
                    ids=self._tensor(np.zeros(tokens, np.int64)),
                    positions=self._tensor(np.arange(tokens)),
                    slots=self._tensor(np.full(tokens, -1)),
                    query_start=self._tensor(sequence),
                    context_lens=self._tensor(sequence[1:]),
                    block_tables=self._tensor(np.zeros((1, tokens), np.int32)),
                    sample_rows=self._tensor(np.arange(tokens)),
                    decodes=int(tokens == 1),
                ),
                self._pool,
            )

    def submit(self, batch: Batch) -> Sampled:
        step = StepTensors(
            ids=self._tensor(batch.ids),
            positions=self._tensor(batch.positions),
            slots=self._tensor(batch.slots),
            query_start=self._tensor(batch.query_start),
            context_lens=self._tensor(batch.context_lens),
            block_tables=self._tensor(batch.block_tables),
            sample_rows=self._tensor(batch.sample_rows),
            decodes=batch.decodes,
        )
        logits = self._decoder.forward(step, self._pool)
        return sample(logits, batch.samples) if batch.samples else Sampled([], [])

    def close(self) -> None:
        """Release the KV pool's memory."""
        self._pool.clear()

    def _tensor(self, array: NDArray[np.int64] | NDArray[np.int32]) -> Tensor:
        return torch.from_numpy(array).to(self._device, non_blocking=True)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On a CPU, pages that the system clears when they are first touched. Torch would touch all of them at once, which
    takes most of a second for 1 GiB, and all of it would count as used.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, math.prod(shape) * dtype.itemsize), dtype=dtype).view(shape)


def kv_dtype(device: torch.device, model_dtype: torch.dtype) -> torch.dtype:
    """float32 on a CPU, whose attention has no bfloat16 path that would be faster; the model's elsewhere."""
    return torch.float32 if device.type == "cpu" else model_dtype


def kv_blocks(
    kv_bytes: int, config: ModelConfig, *, block_size: int, device: torch.device, model_dtype: torch.dtype
) -> int:
    """How many blocks (the null block included) fit in `kv_bytes`."""
    block_bytes = config.kv_elements_per_token * block_size * kv_dtype(device, model_dtype).itemsize
    return kv_bytes // block_bytes
