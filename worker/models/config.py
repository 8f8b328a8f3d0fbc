"""The shape of a decoder of the Llama family, whatever file it was read from. Owns no tensors and reads no file.

Invariant: a ModelConfig can always be built: `check_shape` has accepted it, and its reader has refused by name
everything that this decoder does not implement.
"""

from dataclasses import dataclass

from worker.models.errors import ModelFileError
from worker.models.rope import Rope

LAYERS_MAX, CONTEXT_MAX = 1024, 2**22


@dataclass(slots=True, frozen=True, kw_only=True)
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
    rope: Rope
    windows: tuple[int | None, ...]  # by layer: how many keys, its own included, a query sees; None: all
    tied: bool = False  # the embedding is also the output
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    qk_norm: bool = False  # each head of q and k is normalized before the rotation

    @property
    def kv_elements_per_token(self) -> int:
        """How many numbers one token has in the KV pool, over all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def check_shape(config: ModelConfig, where: object) -> None:
    """Raises ModelFileError, naming `where`, for a shape that no decoder can have."""
    refusals = {
        f"{config.layers} layers": config.layers > LAYERS_MAX,
        f"a context of {config.context_length} tokens": config.context_length > CONTEXT_MAX,
        f"a rotary base of {config.rope.base}": config.rope.base <= 1,
        f"{config.heads} heads over {config.kv_heads} KV heads": config.heads % config.kv_heads != 0,
        f"odd head dimension {config.head_dim}": config.head_dim % 2 != 0,
        "a sliding window below 1": any(window is not None and window < 1 for window in config.windows),
    }
    for what, present in refusals.items():
        if present:
            raise ModelFileError(f"{where}: not supported: {what}")
