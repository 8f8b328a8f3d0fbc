"""From a path to a model that a runner can run. The only entry of this package that imports torch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from worker.models.card import Card, card_of_folder, card_of_gguf
from worker.models.checkpoint import Checkpoint, ModelFolder
from worker.models.checkpoint_source import CheckpointSource, as_stored
from worker.models.config import ModelConfig
from worker.models.gguf_file import GgufFile
from worker.models.gguf_source import GgufSource
from worker.models.layers import bf16_is_native
from worker.models.names import layer_name
from worker.models.packer import WeightsMode, packer
from worker.models.source import TensorSource
from worker.models.weights import Weights, load_weights

DtypeName = Literal["auto", "fp32", "bf16"]


@dataclass(slots=True, frozen=True)
class LoadedModel:
    card: Card
    weights: Weights
    dtype: torch.dtype
    device: torch.device

    @property
    def config(self) -> ModelConfig:
        return self.card.config


def load_model(
    path: Path,
    dtype: DtypeName = "auto",
    progress: Callable[[float], None] | None = None,
    *,
    device: torch.device | None = None,
    weights: WeightsMode = "auto",
) -> LoadedModel:
    """Load a GGUF file or a model folder. `progress` is called with a fraction from 0 to 1. If the dtype is `auto`, a
    CPU also rounds the activations that multiply 4-bit weights (docs/adr/0020).

    Raises ModelFileError, and ValueError for a way to store weights that the device or the dtype does not support.
    """
    where = device or torch.device("cpu")
    card, source = _open(path)
    chosen = resolve_dtype(dtype, where, weights, codes=dtype == "auto" and _keeps_codes(source))
    pack = packer(weights, chosen, where, rounds=dtype == "auto")
    loaded = load_weights(source, card.config, dtype=chosen, device=where, pack=pack, progress=progress)
    return LoadedModel(card, loaded, chosen, where)


def _open(path: Path) -> tuple[Card, TensorSource]:
    if path.is_dir():
        folder = ModelFolder(path)
        card, checkpoint = card_of_folder(folder), Checkpoint.open(folder)
        card = replace(card, config=as_stored(card.config, checkpoint))
        return card, CheckpointSource(checkpoint, card.config)
    file = GgufFile.open(path)
    card = card_of_gguf(file)
    return card, GgufSource(file, card.config)


def _keeps_codes(source: TensorSource) -> bool:
    """Whether its products can be multiplied as it keeps them; those of a file are mostly alike."""
    name = layer_name(0, "down")
    return source.shape(name) is not None and source.codes(name) is not None


def resolve_dtype(name: DtypeName, device: torch.device, weights: WeightsMode = "auto", *, codes: bool) -> torch.dtype:
    """`auto` is bfloat16 on a GPU, unless the weights are to be float32. On a CPU it is float32, which layers in one
    call compute in (`whole_layers`), unless the processor multiplies bfloat16 natively and the weights are not kept in
    few bits. codes: whether the file keeps them so.
    """
    if name != "auto":
        return {"fp32": torch.float32, "bf16": torch.bfloat16}[name]
    few_bits = weights in ("int8", "int4") or (weights == "auto" and codes)
    if weights == "fp32" or (device.type == "cpu" and (few_bits or not bf16_is_native())):
        return torch.float32
    return torch.bfloat16
