"""Decoders with random weights: in the shape of Llama-3.1-8B, and one that an interpreter can run.

Reads no file. Invariant: logits of random weights are finite, and no two tokens are likely to tie.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.models.config import ModelConfig
from worker.models.layers import Linear, PlainLinear
from worker.models.rope import Rope
from worker.models.token_table import TokenTable
from worker.models.weights import LayerWeights, Weights


def llama_8b() -> ModelConfig:
    """The shape of Llama-3.1-8B; a shorter context than its 131,072 keeps tables and scratch small."""
    return ModelConfig(
        layers=32,
        hidden=4_096,
        intermediate=14_336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocab_size=128_256,
        context_length=8_192,
        rms_eps=1e-5,
        rope=Rope(500_000.0),
        windows=(None,) * 32,
    )


def tiny() -> ModelConfig:
    return ModelConfig(
        layers=1,
        hidden=32,
        intermediate=64,
        heads=2,
        kv_heads=1,
        head_dim=16,
        vocab_size=64,
        context_length=64,
        rms_eps=1e-5,
        rope=Rope(10_000.0),
        windows=(None,),
    )


def vocabulary(config: ModelConfig) -> TokenTable:
    return TokenTable((b"",) + (b" word",) * (config.vocab_size - 1), eos_ids=frozenset({0}))


@dataclass
class RandomWeights:
    config: ModelConfig
    dtype: torch.dtype
    device: torch.device
    pack: Callable[[Tensor], Linear] = PlainLinear  # of float32, if it is another
    seed: int = 0

    def make(self) -> Weights:
        config = self.config
        self._generator = torch.Generator(self.device).manual_seed(self.seed)
        return Weights(
            embedding=self._matrix(config.vocab_size, config.hidden),
            layers=[self._layer() for _ in range(config.layers)],
            final_norm=self._norm(config.hidden),
            head=self._linear(config.vocab_size, config.hidden),
            rope_factors=None,
        )

    def _layer(self) -> LayerWeights:
        config = self.config
        return LayerWeights(
            attention_norm=self._norm(config.hidden),
            qkv=self._linear((config.heads + 2 * config.kv_heads) * config.head_dim, config.hidden),
            q_norm=None,
            k_norm=None,
            attention_output=self._linear(config.hidden, config.heads * config.head_dim),
            mlp_norm=self._norm(config.hidden),
            gate_up=self._linear(2 * config.intermediate, config.hidden),
            down=self._linear(config.hidden, config.intermediate),
        )

    def _linear(self, outputs: int, inputs: int) -> Linear:
        weight = self._matrix(outputs, inputs)
        return self.pack(weight if self.pack is PlainLinear else weight.float())

    def _matrix(self, outputs: int, inputs: int) -> Tensor:
        whole = torch.empty(outputs, inputs, dtype=self.dtype, device=self.device)
        return whole.normal_(0, inputs**-0.5, generator=self._generator)

    def _norm(self, width: int) -> Tensor:
        return torch.ones(width, dtype=self.dtype, device=self.device)
