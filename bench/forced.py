"""Feeds given continuations to the demo model, and records what it would have generated at each position."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.cpu import CpuOps
from worker.models.card import demo_model_path
from worker.models.decoder import KvPool, StepTensors
from worker.models.load import DtypeName, LoadedModel, load_model
from worker.models.packer import WeightsMode
from worker.models.whole_layers import decoder

BLOCK_SIZE = 16

Text = tuple[list[int], list[int]]  # prompt, continuation


@dataclass(slots=True, frozen=True)
class Answers:
    weights_mib: float
    ids: list[int]  # the most likely token at each position of each continuation
    logprobs: list[float]  # of the continuation's own token at each position


def read(texts: Sequence[Text], mode: WeightsMode, dtype: DtypeName) -> Answers:
    model = load_model(demo_model_path(), dtype, weights=mode)
    ids: list[int] = []
    logprobs: list[float] = []
    for prompt, continuation in texts:
        found = _logits(model, prompt + continuation, len(continuation)).log_softmax(-1)
        ids += found.argmax(-1).tolist()
        logprobs += found.gather(1, torch.tensor(continuation).unsqueeze(1)).flatten().tolist()
    return Answers(model.weights.nbytes / 2**20, ids, logprobs)


def _logits(model: LoadedModel, tokens: list[int], wanted: int) -> torch.Tensor:
    """The logits from which the last `wanted` tokens would have been drawn."""
    count, config = len(tokens), model.config
    blocks = -(-count // BLOCK_SIZE)
    shape = (blocks + 1, BLOCK_SIZE, config.kv_heads, config.head_dim)
    step = StepTensors(
        ids=torch.tensor(tokens),
        positions=torch.arange(count),
        slots=torch.arange(count) + BLOCK_SIZE,
        query_start=torch.tensor([0, count]).int(),
        context_lens=torch.tensor([count]).int(),
        block_tables=torch.arange(1, blocks + 1).int().unsqueeze(0),
        sample_rows=torch.arange(count - wanted - 1, count - 1),
    )
    pool = KvPool(*([torch.zeros(shape) for _ in range(config.layers)] for _ in range(2)))
    return decoder(config, model.weights, CpuOps()).forward(step, pool)
