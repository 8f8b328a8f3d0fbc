"""The decoder's own names for its tensors, the shape of each, and how a file's dialect writes them.

`embedding`, `final_norm`, `head`, `rope_factors`; in layer n `layers.n.` and one of `attention_norm q k v
attention_output mlp_norm gate up down`, `q_bias k_bias v_bias attention_output_bias`, `q_norm k_norm`. Which of them a
model has follows from its ModelConfig alone, and is written down nowhere else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from worker.models.config import ModelConfig

EMBEDDING, FINAL_NORM, HEAD = "embedding", "final_norm", "head"
ROPE_FACTORS = "rope_factors"  # a file may have it: divisors of the rotary frequencies

Shape = tuple[int, ...]


@dataclass(slots=True, frozen=True)
class Dialect:
    """How one kind of file names the decoder's tensors."""

    whole: Mapping[str, str]
    layer: str  # the prefix of layer {}'s tensors
    parts: Mapping[str, str]

    def own(self, name: str) -> str | None:
        """The file's name for `name`; None if the dialect has no such tensor."""
        if not name.startswith("layers."):
            return self.whole.get(name)
        _, number, part = name.split(".")
        return self.layer.format(number) + self.parts[part]


def shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor that a model of `config` must have, outermost dimension first."""
    found: dict[str, Shape] = {EMBEDDING: (config.vocab_size, config.hidden), FINAL_NORM: (config.hidden,)}
    if not config.tied:
        found[HEAD] = (config.vocab_size, config.hidden)
    parts = _layer(config)
    for layer in range(config.layers):
        found |= {layer_name(layer, part): shape for part, shape in parts.items()}
    return found


def layer_name(layer: int, part: str) -> str:
    return f"layers.{layer}.{part}"


def _layer(config: ModelConfig) -> dict[str, Shape]:
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    found: dict[str, Shape] = {
        "attention_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "attention_output": (hidden, queries),
        "mlp_norm": (hidden,),
        "gate": (wide, hidden),
        "up": (wide, hidden),
        "down": (hidden, wide),
    }
    if config.qkv_bias:
        found |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if config.output_bias:
        found["attention_output_bias"] = (hidden,)
    if config.qk_norm:
        found |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    return found
