"""The shape of a decoder from GGUF metadata. Knows the keys; `config` what they describe.

Source: the GGUF specification's keys, and for defaults what llama.cpp assumes where one is absent.
"""

from dataclasses import dataclass

from worker.models.config import ModelConfig, check_shape
from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile
from worker.models.json_file import INTEGER_MAX, NUMBER_MAX
from worker.models.rope import LinearScaling, Rope, Scaling, YarnScaling, yarn_attention

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files say llama
EMBEDDING = "token_embd.weight"


@dataclass(slots=True, frozen=True)
class _Fields:
    """The metadata below the architecture's name."""

    file: GgufFile
    architecture: str

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self.file.metadata

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        name = f"{self.architecture}.{key}"
        value = default if default is not None and not self.has(key) else self.file.require(name, int)
        if not least <= value <= INTEGER_MAX:
            raise ModelFileError(f"{self.file.path}: metadata field {name} is {value}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        name = f"{self.architecture}.{key}"
        value = default if default is not None and not self.has(key) else self.file.require(name, (float, int))
        if not 0 < value <= NUMBER_MAX:
            raise ModelFileError(f"{self.file.path}: metadata field {name} is {value}")
        return float(value)

    def text(self, key: str, default: str) -> str:
        return self.file.require(f"{self.architecture}.{key}", str) if self.has(key) else default


def read_config(file: GgufFile) -> ModelConfig:
    """Raises ModelFileError for another architecture, a missing field, or a variant that is not implemented."""
    architecture = file.require("general.architecture", str)
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelFileError(f"{file.path}: architecture {architecture!r} is not supported, only {known}")
    fields = _Fields(file, architecture)
    heads, hidden, layers = (fields.integer(k) for k in ("attention.head_count", "embedding_length", "block_count"))
    head_dim = fields.integer("attention.key_length", hidden // heads)
    _refuse_variants(fields, head_dim)
    window = fields.integer("attention.sliding_window", 0, least=0) or None
    context_length = fields.integer("context_length")
    rope = Rope(fields.number("rope.freq_base", 10_000.0), _scaling(fields, context_length))
    config = ModelConfig(
        layers=layers,
        hidden=hidden,
        intermediate=fields.integer("feed_forward_length"),
        heads=heads,
        kv_heads=fields.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab_size=_vocab_size(file),
        context_length=rope.reach(context_length),
        rms_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        windows=(window,) * layers,
        tied="output.weight" not in file.tensors,
        qkv_bias=architecture == "qwen2" or "blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=architecture == "qwen3",
    )
    check_shape(config, file.path)
    return config


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get(EMBEDDING)
    if embedding is None:
        raise ModelFileError(f"{file.path}: tensor {EMBEDDING} is missing")
    return embedding.shape[0]


def _scaling(fields: _Fields, context_length: int) -> Scaling | None:
    factor = fields.number("rope.scaling.factor", fields.number("rope.scale_linear", 1.0))
    match fields.text("rope.scaling.type", "linear"):
        case "none":
            return None
        case "linear":
            return LinearScaling(factor) if factor != 1 else None
        case "yarn":
            original = fields.integer("rope.scaling.original_context_length", context_length)
            louder = fields.number("rope.scaling.attn_factor", 1.0)
            return YarnScaling(
                factor,
                original,
                attention=louder * yarn_attention(factor),
                beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
            )
        case other:
            raise ModelFileError(f"{fields.file.path}: not supported: RoPE scaling {other!r}")


def _refuse_variants(fields: _Fields, head_dim: int) -> None:
    """Refuse variants that would load but compute something else."""

    def differs(key: str, expected: float) -> bool:
        return fields.file.metadata.get(f"{fields.architecture}.{key}", expected) != expected

    refusals = {
        "value heads of another size than key heads": differs("attention.value_length", head_dim),
        "partial rotary embedding": differs("rope.dimension_count", head_dim),
        "mixture of experts": differs("expert_count", 0),
        "windows on some layers only": fields.has("attention.sliding_window_pattern"),
        "rope.scaling.yarn_log_multiplier": differs("rope.scaling.yarn_log_multiplier", 0),
        "rope.scaling.yarn_ext_factor": differs("rope.scaling.yarn_ext_factor", 1),
        "rope.scaling.yarn_attn_factor": differs("rope.scaling.yarn_attn_factor", 1),
    }
    for what, present in refusals.items():
        if present:
            raise ModelFileError(f"{fields.file.path}: not supported: {what}")
