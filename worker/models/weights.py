"""Turns a GGUF file's tensors into a decoder's weights: every one present, of the right shape, finite, in torch.

Which tensors a Llama needs and what each must look like is written down once, in `expected_shapes`; the check runs
over the whole file before the first tensor is converted, so that a damaged file is refused in milliseconds.

Invariant: no weight is ever left uninitialised.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from torch import Tensor

from worker.models.config import EMBEDDING, ModelConfig
from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile
from worker.models.layers import Linear, Packer

OUTPUT = "output.weight"
OUTPUT_NORM = "output_norm.weight"
ROPE_FACTORS = "rope_freqs.weight"
OPTIONAL = (OUTPUT, ROPE_FACTORS)  # without the first, the embedding is also the output

SUPPORTED = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1}
    | {Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K}
)


@dataclass(slots=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
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
    rope_factors: Tensor | None  # [head_dim / 2] float32 divisors of the rotary frequencies (Llama 3.1 and later)


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a Llama GGUF with `config`, outermost dimension first."""
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (config.vocab_size, hidden),
        OUTPUT_NORM: (hidden,),
        OUTPUT: (config.vocab_size, hidden),
        ROPE_FACTORS: (config.head_dim // 2,),
    }
    for layer in range(config.layers):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (hidden,),
            f"blk.{layer}.attn_q.weight": (queries, hidden),
            f"blk.{layer}.attn_k.weight": (keys, hidden),
            f"blk.{layer}.attn_v.weight": (keys, hidden),
            f"blk.{layer}.attn_output.weight": (hidden, queries),
            f"blk.{layer}.ffn_norm.weight": (hidden,),
            f"blk.{layer}.ffn_gate.weight": (wide, hidden),
            f"blk.{layer}.ffn_up.weight": (wide, hidden),
            f"blk.{layer}.ffn_down.weight": (hidden, wide),
        }
    return shapes


def check_tensors(file: GgufFile, config: ModelConfig) -> None:
    """Raises ModelFileError for the first tensor that is missing, misshapen or of a type that is not implemented.

    Tensors that nothing asks for are warned about and ignored.
    """
    expected = expected_shapes(config)
    for name, shape in expected.items():
        tensor = file.tensors.get(name)
        if tensor is None:
            if name in OPTIONAL:
                continue
            msg = f"{file.path}: tensor {name} is missing"
            raise ModelFileError(msg)
        if tensor.shape != shape:
            msg = f"{file.path}: tensor {name} has shape {tensor.shape}, expected {shape}"
            raise ModelFileError(msg)
        if tensor.kind not in SUPPORTED:
            msg = f"{file.path}: tensor {name} has quantization {tensor.kind.name}, which is not supported"
            raise ModelFileError(msg)
    extra = sorted(file.tensors.keys() - expected.keys())
    for name in extra:
        if name.endswith(".bias"):
            msg = f"{file.path}: tensor {name}: biases are not supported"
            raise ModelFileError(msg)
    if extra:
        warnings.warn(f"{file.path}: ignored tensors: {', '.join(extra[:5])} ({len(extra)} in all)", stacklevel=2)


class _Reader:
    """Reads tensors in one dtype onto one device, and reports how much of the file is done."""

    def __init__(
        self, file: GgufFile, dtype: torch.dtype, device: torch.device, progress: Callable[[float], None] | None
    ) -> None:
        self.file, self.dtype, self.device, self.progress = file, dtype, device, progress
        self.done = 0
        self.total = sum(tensor.nbytes for tensor in file.tensors.values())

    def read(self, *names: str, heads: int = 0) -> Tensor:
        """The named tensors, one below the other. With `heads`, rows of each head are put back from RoPE's
        interleaved pairs into two halves, which is how GGUF keeps Q and K of Llama models.
        """
        parts = [self.float32(name) for name in names]
        if heads:
            parts = [_halves(part, heads) for part in parts]
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        return whole.to(self.device, self.dtype)

    def float32(self, name: str) -> Tensor:
        tensor = self.file.tensors[name]
        raw = self.file.bytes_of(tensor).reshape(*tensor.shape[:-1], -1)
        with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale; refused below
            values = dequantize(raw, tensor.kind)
        if not np.isfinite(values).all():
            msg = f"{self.file.path}: tensor {tensor.name} holds values that are not finite"
            raise ModelFileError(msg)
        self.done += tensor.nbytes
        if self.progress is not None:
            self.progress(self.done / self.total)
        owned = values if values.flags.writeable else values.copy()  # float32 comes as a view of the file
        return torch.from_numpy(owned.reshape(tensor.shape))


def _halves(weight: Tensor, heads: int) -> Tensor:
    """[heads * head_dim, hidden] with rows (0, 1), (2, 3), ... rotated together -> rows d and d + head_dim / 2."""
    rows, columns = weight.shape
    pairs = weight.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns)


def load_weights(
    file: GgufFile,
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
    check_tensors(file, config)
    reader = _Reader(file, dtype, device, progress)
    embedding = reader.read(EMBEDDING)
    return Weights(
        embedding=embedding,
        layers=[_layer(reader, config, layer, pack) for layer in range(config.layers)],
        final_norm=reader.read(OUTPUT_NORM),
        head=pack(reader.read(OUTPUT) if OUTPUT in file.tensors else embedding),
        rope_factors=reader.float32(ROPE_FACTORS) if ROPE_FACTORS in file.tensors else None,
    )


def _layer(reader: _Reader, config: ModelConfig, layer: int, pack: Packer) -> LayerWeights:
    blk = f"blk.{layer}"
    queries = reader.read(f"{blk}.attn_q.weight", heads=config.heads)
    keys = reader.read(f"{blk}.attn_k.weight", heads=config.kv_heads)
    values = reader.read(f"{blk}.attn_v.weight")
    return LayerWeights(
        attention_norm=reader.read(f"{blk}.attn_norm.weight"),
        qkv=pack(torch.cat((queries, keys, values))),
        attention_output=pack(reader.read(f"{blk}.attn_output.weight")),
        mlp_norm=reader.read(f"{blk}.ffn_norm.weight"),
        gate_up=pack(reader.read(f"{blk}.ffn_gate.weight", f"{blk}.ffn_up.weight")),
        down=pack(reader.read(f"{blk}.ffn_down.weight")),
    )
