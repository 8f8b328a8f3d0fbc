"""Turns a source's tensors into a decoder's weights: all present, of the right shape, finite, in torch.

All tensors are checked before the first one is read, so that a damaged file is refused in milliseconds and nothing is
half loaded. Knows our names for tensors and no file format.

Invariant: no weight is ever left uninitialised.
"""

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from worker.models import names
from worker.models.config import ModelConfig
from worker.models.errors import ModelFileError
from worker.models.layers import Linear, Packer
from worker.models.names import EMBEDDING, FINAL_NORM, HEAD, ROPE_FACTORS, layer_name
from worker.models.source import Codes, TensorSource

LAYER = re.compile(r"\.(\d+)\.")
# Biases, further norms, the scales of quantized weights, adapters and sinks of attention.
MEANS_MORE = re.compile(r"\.bias$|norm\d?\.weight$|weight_(scale|zero_point)|lora_|sinks")


@dataclass(slots=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    q_norm: Tensor | None  # [head_dim]; both or neither
    k_norm: Tensor | None
    attention_output: Linear
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear


@dataclass(slots=True)
class Weights:
    embedding: Tensor  # [vocab, hidden]
    layers: list[LayerWeights]
    final_norm: Tensor  # [hidden]
    head: Linear  # hidden -> vocab
    rope_factors: Tensor | None  # [head_dim / 2], on the CPU: divisors of rotary frequencies (GGUF of Llama 3.1 on)

    @property
    def nbytes(self) -> int:
        """What the matrices take, an embedding that is also the head once for each use."""
        projections = [
            linear.nbytes
            for layer in self.layers
            for linear in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        ]
        return self.embedding.nbytes + self.head.nbytes + sum(projections)


def check_tensors(source: TensorSource, config: ModelConfig) -> list[str]:
    """The names of the tensors to read. Tensors that no layer needs are ignored, with a warning.

    Raises ModelFileError for the first tensor that is missing, misshapen or of an unsupported type, and for one that
    only a model of another kind has.
    """
    expected = names.shapes(config)
    if source.shape(ROPE_FACTORS) is not None:
        expected[ROPE_FACTORS] = (config.head_dim // 2,)
    for name, shape in expected.items():
        found = source.shape(name)
        if found is None:
            raise ModelFileError(f"{source.place(name)} is missing")
        if found != shape:
            raise ModelFileError(f"{source.place(name)} has shape {found}, expected {shape}")
    extra = source.unused(expected)
    for name in extra:
        if _counts(name, config.layers):
            raise ModelFileError(f"{source.path}: tensor {name} is not supported: without it answers would be others")
    if extra:
        warnings.warn(f"{source.path}: ignored tensors: {', '.join(extra[:5])} ({len(extra)} in all)", stacklevel=2)
    return list(expected)


def _counts(name: str, layers: int) -> bool:
    """Whether a tensor that no layer needs means that the model computes something else, in a layer that it has."""
    layer = LAYER.search(name)
    return MEANS_MORE.search(name) is not None and (layer is None or int(layer[1]) < layers)


class _Reader:
    """Reads tensors in one dtype onto one device, and reports how much of the file is done."""

    def __init__(
        self,
        source: TensorSource,
        wanted: list[str],
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[float], None] | None,
    ) -> None:
        self.source, self.wanted, self.dtype, self.device, self.progress = source, wanted, dtype, device, progress
        self.done = 0
        self.total = sum(source.nbytes(name) for name in wanted if name != ROPE_FACTORS)

    def whole(self, *wanted: str) -> Tensor:
        """The named tensors, stacked one below the other."""
        return self.wide(*wanted).to(self.dtype)

    def wide(self, *wanted: str) -> Tensor:
        """The same in float32, for a packer to store as it chooses."""
        parts = [self._one(name) for name in wanted]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def matrix(self, *wanted: str, codes: bool) -> Tensor | Codes:
        """The same or, with `codes`, as the file's codes if it has them."""
        kept = [self.source.codes(name) for name in wanted] if codes else []
        found = [part for part in kept if part is not None]
        whole = Codes.below(found) if len(found) == len(wanted) else None
        if whole is None:
            return self.wide(*wanted)
        self._count(*wanted)
        return whole

    def optional(self, *wanted: str) -> Tensor | None:
        """The same, or None where the model has no such tensors."""
        return self.whole(*wanted) if wanted[0] in self.wanted else None

    def _one(self, name: str) -> Tensor:
        tensor = self.source.read(name).to(self.device, torch.float32)
        self._count(name)
        return tensor

    def _count(self, *names: str) -> None:
        self.done += sum(map(self.source.nbytes, names))
        if self.progress is not None:
            self.progress(self.done / self.total)


def load_weights(
    source: TensorSource,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    pack: Packer,
    progress: Callable[[float], None] | None = None,
) -> Weights:
    """Check and convert; every projection is made by `pack`. `progress` is called with a fraction from 0 to 1.

    Raises ModelFileError.
    """
    wanted = check_tensors(source, config)
    reader = _Reader(source, wanted, dtype=dtype, device=device, progress=progress)
    embedding = reader.matrix(EMBEDDING, codes=pack.keeps_codes)
    values = embedding.values() if isinstance(embedding, Codes) else embedding
    return Weights(
        embedding=values.to(dtype),
        layers=[_layer(reader, layer, pack) for layer in range(config.layers)],
        final_norm=reader.whole(FINAL_NORM),
        head=pack(embedding if config.tied else reader.matrix(HEAD, codes=pack.keeps_codes)),
        rope_factors=source.read(ROPE_FACTORS) if ROPE_FACTORS in wanted else None,
    )


def _layer(reader: _Reader, layer: int, pack: Packer) -> LayerWeights:
    def name(part: str) -> str:
        return layer_name(layer, part)

    def projection(*parts: str) -> Tensor | Codes:
        return reader.matrix(*map(name, parts), codes=pack.keeps_codes)

    return LayerWeights(
        attention_norm=reader.whole(name("attention_norm")),
        qkv=pack(
            projection("q", "k", "v"),
            reader.optional(name("q_bias"), name("k_bias"), name("v_bias")),
        ),
        q_norm=reader.optional(name("q_norm")),
        k_norm=reader.optional(name("k_norm")),
        attention_output=pack(projection("attention_output"), reader.optional(name("attention_output_bias"))),
        mlp_norm=reader.whole(name("mlp_norm")),
        gate_up=pack(projection("gate", "up")),
        down=pack(projection("down")),
    )
