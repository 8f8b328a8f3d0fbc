"""A folder's safetensors as a TensorSource. Knows the tensor names of Hugging Face's models. They store Q and K in
halves, as the decoder does, so no rows are reordered.
"""

import re
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from worker.models.checkpoint import Checkpoint
from worker.models.config import ModelConfig
from worker.models.errors import ModelFileError
from worker.models.names import EMBEDDING, HEAD, Dialect
from worker.models.safetensors_file import StoredTensor
from worker.models.source import Codes

DIALECT = Dialect(
    whole={
        "embedding": "model.embed_tokens.weight",
        "final_norm": "model.norm.weight",
        "head": "lm_head.weight",
    },
    layer="model.layers.{}.",
    parts={
        "attention_norm": "input_layernorm.weight",
        "q": "self_attn.q_proj.weight",
        "k": "self_attn.k_proj.weight",
        "v": "self_attn.v_proj.weight",
        "attention_output": "self_attn.o_proj.weight",
        "mlp_norm": "post_attention_layernorm.weight",
        "gate": "mlp.gate_proj.weight",
        "up": "mlp.up_proj.weight",
        "down": "mlp.down_proj.weight",
        "q_bias": "self_attn.q_proj.bias",
        "k_bias": "self_attn.k_proj.bias",
        "v_bias": "self_attn.v_proj.bias",
        "attention_output_bias": "self_attn.o_proj.bias",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
    },
)
SUPPORTED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
COMPARED_BYTES = 2**24  # compared at a time
DERIVED = re.compile(r".*rotary_emb\.inv_freq")  # old checkpoints store these, though the config determines them


def as_stored(config: ModelConfig, checkpoint: Checkpoint) -> ModelConfig:
    """The config, with an output head of its own if the files have one that differs from the embedding, whatever
    `tie_word_embeddings` says. The `transformers` library does the same.
    """
    if not config.tied or _same(checkpoint, DIALECT.whole[HEAD], DIALECT.whole[EMBEDDING]):
        return config
    warnings.warn(f"{checkpoint.path}: tie_word_embeddings is true, but the head is another: it is used", stacklevel=2)
    return replace(config, tied=False)


def _same(checkpoint: Checkpoint, name: str, other: str) -> bool:
    """Whether both tensors have the same content, or one of them is missing."""
    home, home_of_other = checkpoint.homes.get(name), checkpoint.homes.get(other)
    if home is None or home_of_other is None:
        return True
    tensor, stored = home.tensors[name], home_of_other.tensors[other]
    if (tensor.shape, tensor.kind) != (stored.shape, stored.kind):
        return False
    left, right = home.bytes_of(tensor), home_of_other.bytes_of(stored)
    starts = range(0, len(left), COMPARED_BYTES)
    return all(bytes(left[at : at + COMPARED_BYTES]) == bytes(right[at : at + COMPARED_BYTES]) for at in starts)


class CheckpointSource:
    """Implements `source.TensorSource`."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self._checkpoint = checkpoint
        self._copies = {DIALECT.whole[HEAD]} if config.tied else set[str]()

    @property
    def path(self) -> Path:
        return self._checkpoint.path

    def place(self, name: str) -> str:
        own = DIALECT.own(name)
        home = self._checkpoint.homes.get(own or "")
        return f"{self.path if home is None else home.path}: tensor {own}"

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self._find(name)
        if tensor is None:
            return None
        if tensor.kind not in SUPPORTED:
            raise ModelFileError(
                f"{self.place(name)} has type {tensor.kind}, only {', '.join(SUPPORTED)} are supported"
            )
        return tensor.shape

    def nbytes(self, name: str) -> int:
        tensor = self._find(name)
        return 0 if tensor is None else tensor.nbytes

    def read(self, name: str) -> Tensor:
        tensor = self._find(name)
        assert tensor is not None, name
        home = self._checkpoint.homes[DIALECT.own(name) or ""]
        owned = torch.frombuffer(bytearray(home.bytes_of(tensor)), dtype=SUPPORTED[tensor.kind]).view(tensor.shape)
        if not owned.isfinite().all():
            raise ModelFileError(f"{self.place(name)} holds values that are not finite")
        return owned

    def codes(self, name: str) -> Codes | None:  # noqa: ARG002 - these files have only floating point numbers
        return None

    def unused(self, names: Collection[str]) -> list[str]:
        used = {DIALECT.own(name) for name in names} | self._copies
        return sorted(name for name in self._checkpoint.homes.keys() - used if not DERIVED.fullmatch(name))

    def _find(self, name: str) -> StoredTensor | None:
        own = DIALECT.own(name) or ""
        home = self._checkpoint.homes.get(own)
        return None if home is None else home.tensors[own]
