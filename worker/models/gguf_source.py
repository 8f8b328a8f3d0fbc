"""A GGUF file as a TensorSource: gives its values or its codes, with the rows of Q and K in the decoder's order.

Knows GGUF's names and one peculiarity: files of the llama architecture store each head's rows as neighbouring pairs,
the others as two halves.
"""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Kind
from gguf.quants import dequantize
from numpy.typing import NDArray
from torch import Tensor

from worker.models.config import ModelConfig
from worker.models.errors import ModelFileError
from worker.models.gguf_codes import BLOCKS, read_codes
from worker.models.gguf_file import GgufFile, TensorInfo
from worker.models.names import Dialect
from worker.models.source import Codes

DIALECT = Dialect(
    whole={
        "embedding": "token_embd.weight",
        "final_norm": "output_norm.weight",
        "head": "output.weight",
        "rope_factors": "rope_freqs.weight",
    },
    layer="blk.{}.",
    parts={
        "attention_norm": "attn_norm.weight",
        "q": "attn_q.weight",
        "k": "attn_k.weight",
        "v": "attn_v.weight",
        "attention_output": "attn_output.weight",
        "mlp_norm": "ffn_norm.weight",
        "gate": "ffn_gate.weight",
        "up": "ffn_up.weight",
        "down": "ffn_down.weight",
        "q_bias": "attn_q.bias",
        "k_bias": "attn_k.bias",
        "v_bias": "attn_v.bias",
        "attention_output_bias": "attn_output.bias",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
    },
)
SUPPORTED = frozenset(
    {Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1}
    | {Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K}
)
MATRIX = 2  # dimensions
PAIRED = "llama"  # the architecture whose files store Q and K in pairs


class GgufSource:
    """Implements `source.TensorSource`."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        paired = file.metadata["general.architecture"] == PAIRED
        self._heads = {"q": config.heads, "k": config.kv_heads} if paired else {}

    @property
    def path(self) -> Path:
        return self._file.path

    def place(self, name: str) -> str:
        return f"{self._file.path}: tensor {DIALECT.own(name)}"

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._find(name)
        if tensor is None:
            return None
        if tensor.kind not in SUPPORTED:
            raise ModelFileError(f"{self.place(name)} has quantization {tensor.kind.name}, which is not supported")
        return tensor.shape

    def nbytes(self, name: str) -> int:
        tensor = self._find(name)
        return 0 if tensor is None else tensor.nbytes

    def read(self, name: str) -> Tensor:
        kept = self.codes(name)
        if kept is not None:
            return kept.values()
        tensor = self._find(name)
        assert tensor is not None, name
        with np.errstate(over="ignore", invalid="ignore"):  # a damaged scale; refused below
            values = dequantize(self._raw(tensor), tensor.kind)
        owned = values if values.flags.writeable else values.copy()  # float32 comes as a view of the file
        whole = torch.from_numpy(owned.reshape(tensor.shape))
        self._check_finite(name, whole)
        return self._ordered(name, whole)

    def codes(self, name: str) -> Codes | None:
        tensor = self._find(name)
        assert tensor is not None, name
        if tensor.kind not in BLOCKS or len(tensor.shape) != MATRIX:
            return None
        kept = read_codes(self._raw(tensor), tensor.kind)
        minimums = kept.minimums
        self._check_finite(name, kept.scales)
        if minimums is not None:
            self._check_finite(name, minimums)
            minimums = self._ordered(name, minimums)
        return Codes(self._ordered(name, kept.codes), self._ordered(name, kept.scales), minimums)

    def unused(self, names: Collection[str]) -> list[str]:
        return sorted(self._file.tensors.keys() - {DIALECT.own(name) for name in names})

    def _find(self, name: str) -> TensorInfo | None:
        return self._file.tensors.get(DIALECT.own(name) or "")

    def _raw(self, tensor: TensorInfo) -> NDArray[np.uint8]:
        return self._file.bytes_of(tensor).reshape(*tensor.shape[:-1], -1)

    def _check_finite(self, name: str, values: Tensor) -> None:
        if not values.isfinite().all():
            raise ModelFileError(f"{self.place(name)} holds values that are not finite")

    def _ordered(self, name: str, rows: Tensor) -> Tensor:
        heads = self._heads.get(name.rpartition(".")[2].removesuffix("_bias"), 0)
        return _halves(rows, heads) if heads else rows


def _halves(weight: Tensor, heads: int) -> Tensor:
    """[heads * head_dim, ...] with rows (0, 1), (2, 3), ... turned together -> rows d and d + head_dim / 2."""
    pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(weight.shape)
