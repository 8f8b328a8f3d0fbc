"""The shape of a Llama-family decoder, read from GGUF metadata. Owns no tensors.

Invariant: a ModelConfig that exists can be built; everything that this decoder does not implement was refused.
"""

from dataclasses import dataclass

from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile

ARCHITECTURE = "llama"
EMBEDDING = "token_embd.weight"


@dataclass(slots=True, frozen=True)
class ModelConfig:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int  # rows of the logits
    context_length: int  # tokens
    rms_eps: float
    rope_base: float

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that one token keeps in the KV pool, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def read_config(file: GgufFile) -> ModelConfig:
    """Raises ModelFileError for another architecture, a missing field, or a variant that is not implemented."""
    architecture = file.require("general.architecture", str)
    if architecture != ARCHITECTURE:
        msg = f"{file.path}: architecture {architecture!r} is not supported, only {ARCHITECTURE!r}"
        raise ModelFileError(msg)
    heads = _positive(file, "attention.head_count")
    hidden = _positive(file, "embedding_length")
    config = ModelConfig(
        layers=_positive(file, "block_count"),
        hidden=hidden,
        intermediate=_positive(file, "feed_forward_length"),
        heads=heads,
        kv_heads=_positive(file, "attention.head_count_kv", heads),
        head_dim=_positive(file, "attention.key_length", hidden // heads),
        vocab_size=_vocab_size(file),
        context_length=_positive(file, "context_length"),
        rms_eps=file.require(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", float),
        rope_base=float(file.metadata.get(f"{ARCHITECTURE}.rope.freq_base", 10_000.0)),
    )
    _refuse_variants(file, config)
    return config


def _positive(file: GgufFile, key: str, default: int | None = None) -> int:
    name = f"{ARCHITECTURE}.{key}"
    value = default if default is not None and name not in file.metadata else file.require(name, int)
    if value < 1:
        msg = f"{file.path}: metadata field {name} is {value}"
        raise ModelFileError(msg)
    return value


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        msg = f"{file.path}: tensor {EMBEDDING} is missing"
        raise ModelFileError(msg)
    return embedding.shape[0]


def _refuse_variants(file: GgufFile, config: ModelConfig) -> None:
    """What would load but compute something else must not load."""

    def field(key: str, default: object) -> object:
        return file.metadata.get(f"{ARCHITECTURE}.{key}", default)

    head_dim = config.head_dim
    refusals = {
        f"{config.heads} heads over {config.kv_heads} KV heads": config.heads % config.kv_heads != 0,
        f"odd head dimension {head_dim}": head_dim % 2 != 0,
        "value heads of another size than key heads": field("attention.value_length", head_dim) != head_dim,
        "partial rotary embedding": field("rope.dimension_count", head_dim) != head_dim,
        "RoPE scaling": field("rope.scaling.type", "none") != "none",
        "mixture of experts": field("expert_count", 0) != 0,
        "sliding-window attention": field("attention.sliding_window", 0) != 0,
    }
    for what, present in refusals.items():
        if present:
            msg = f"{file.path}: not supported: {what}"
            raise ModelFileError(msg)
