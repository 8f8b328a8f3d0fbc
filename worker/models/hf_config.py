"""The shape of a decoder from a Hugging Face config.json. Knows its fields; `config` what they describe.

What a file does not say is what the `transformers` library assumes for its family. A field that is null counts as
absent, but for `rms_norm_eps`, whose null no library survives. What this decoder does not implement is refused by the
field's name.
"""

from dataclasses import dataclass
from typing import Any

from worker.models.config import ModelConfig, check_shape
from worker.models.errors import ModelFileError
from worker.models.hf_rope import read_rope
from worker.models.json_file import Fields

SILU = ("silu", "swish")


@dataclass(slots=True, frozen=True)
class _Family:
    architecture: str
    context_length: int
    head_dim: int | None = None  # None: hidden / heads
    kv_heads: int | None = None  # None: as many as heads
    qkv_bias: bool = False
    bias_field: bool = False  # attention_bias applies to all four projections
    qk_norm: bool = False
    window: int | None = None  # the default where the file states none; None: the family has no windows
    switched: bool = False  # only if use_sliding_window, and then on layers from max_window_layers on


FAMILIES = {
    "llama": _Family("LlamaForCausalLM", 2048, bias_field=True),
    "mistral": _Family("MistralForCausalLM", 131_072, kv_heads=8, window=4096),
    "qwen2": _Family("Qwen2ForCausalLM", 32_768, qkv_bias=True, window=4096, switched=True),
    "qwen3": _Family(
        "Qwen3ForCausalLM", 32_768, head_dim=128, bias_field=True, qk_norm=True, window=4096, switched=True
    ),
}


def read_config(fields: Fields) -> ModelConfig:
    """Raises ModelFileError for another architecture, a missing field, or a variant that is not implemented."""
    model_type = fields.text("model_type", "")
    family = FAMILIES.get(model_type)
    architectures = fields.items("architectures")
    if family is None or (architectures and family.architecture not in architectures):
        raise ModelFileError(f"{fields.place}: {_unknown(model_type, architectures)}")
    _refuse_variants(fields)
    fields.refuse_null("rms_norm_eps")
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    layers = fields.integer("num_hidden_layers")
    biased = family.bias_field and fields.flag("attention_bias", default=False)
    rope, context_length = read_rope(fields, fields.integer("max_position_embeddings", family.context_length))
    config = ModelConfig(
        layers=layers,
        hidden=hidden,
        intermediate=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=fields.integer("num_key_value_heads", _kv_heads(fields, family, heads)),
        head_dim=fields.integer("head_dim", family.head_dim or max(1, hidden // heads)),
        vocab_size=fields.integer("vocab_size"),
        context_length=context_length,
        rms_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        windows=_windows(fields, family, layers),
        tied=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=family.qkv_bias or biased,
        output_bias=biased,
        qk_norm=family.qk_norm,
    )
    check_shape(config, fields.place)
    return config


def _unknown(model_type: str, architectures: list[Any]) -> str:
    known = [family.architecture for family in FAMILIES.values()]
    found = ", ".join(map(str, architectures))
    if any(architecture in known for architecture in architectures):
        said = f"is {model_type!r}" if model_type else "is missing or null"
        return f"field model_type {said}, and architecture {found} does not go with that"
    return f"architecture {found or model_type or 'unnamed'} is not supported, only {', '.join(known)}"


def _kv_heads(fields: Fields, family: _Family, heads: int) -> int:
    present = "num_key_value_heads" in fields.values
    return heads if present or family.kv_heads is None else family.kv_heads


def _windows(fields: Fields, family: _Family, layers: int) -> tuple[int | None, ...]:
    """Each layer's window. Llama has none, whatever its file says, and Qwen's is off unless its file says otherwise.
    A window that is null is none.
    """
    if family.window is None or (family.switched and not fields.flag("use_sliding_window", default=False)):
        return (None,) * layers
    absent = "sliding_window" not in fields.values
    window = fields.integer("sliding_window", family.window) if absent or fields.has("sliding_window") else None
    if window is None or not family.switched:
        return (window,) * layers
    kinds = fields.items("layer_types")
    if not kinds:
        first = fields.integer("max_window_layers", 28, least=0)
        return tuple(window if layer >= first else None for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= {"sliding_attention", "full_attention"}:
        raise ModelFileError(f"{fields.place}: field layer_types does not fit {layers} layers of known kinds")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _refuse_variants(fields: Fields) -> None:
    """Refuse variants that would load but compute something else."""
    if fields.has("quantization_config"):
        method = fields.inner("quantization_config").values.get("quant_method", "unknown")
        raise ModelFileError(f"{fields.place}: not supported: quantization_config of method {method!r}")
    refusals = {
        "compression_config": fields.has("compression_config"),
        "hidden_act": fields.text("hidden_act", "silu") not in SILU,
        "mlp_bias": fields.flag("mlp_bias", default=False),
        "partial_rotary_factor": fields.number("partial_rotary_factor", 1.0) != 1,
        **{key: fields.has(key) for key in ("num_experts", "num_local_experts", "n_routed_experts", "no_rope_layers")},
    }
    for key, present in refusals.items():
        if present:
            raise ModelFileError(f"{fields.place}: not supported: {key} is {fields.values[key]!r}")
