"""A model folder small enough to write, damage and load in milliseconds."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

LAYERS, HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 2, 32, 48, 4, 2, 8, 128
BOS, EOS = "<|begin|>", "<|end|>"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def config() -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
    }


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        shapes |= {
            f"{at}.input_layernorm.weight": (HIDDEN,),
            f"{at}.self_attn.q_proj.weight": (queries, HIDDEN),
            f"{at}.self_attn.k_proj.weight": (keys, HIDDEN),
            f"{at}.self_attn.v_proj.weight": (keys, HIDDEN),
            f"{at}.self_attn.o_proj.weight": (HIDDEN, queries),
            f"{at}.post_attention_layernorm.weight": (HIDDEN,),
            f"{at}.mlp.gate_proj.weight": (WIDE, HIDDEN),
            f"{at}.mlp.up_proj.weight": (WIDE, HIDDEN),
            f"{at}.mlp.down_proj.weight": (HIDDEN, WIDE),
        }
    return {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}


@dataclass
class Folder:
    """What goes into the folder. Tests change one thing and write it, or write it and damage a file."""

    config: dict[str, object] = field(default_factory=config)
    tensors: dict[str, np.ndarray] = field(default_factory=tensors)

    def write(self, path: Path) -> Path:
        """Two shards: layer 1 lies in the second."""
        path.mkdir(exist_ok=True)
        write_json(path / "config.json", self.config)
        homes = {name: SHARDS["layers.1." in name] for name in self.tensors}
        for shard in SHARDS:
            held = {name: np.ascontiguousarray(t) for name, t in self.tensors.items() if homes[name] == shard}
            save_file(held, path / shard, metadata={"format": "pt"})
        write_json(path / "model.safetensors.index.json", {"metadata": {}, "weight_map": homes})
        write_tokenizer(path)
        return path


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def byte_tokenizer(vocab: int = VOCAB) -> Tokenizer:
    """Byte by byte, as far as `vocab` goes, after two special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    tokens = [BOS, EOS, *alphabet[: vocab - 2]]
    tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    return tokenizer


def write_tokenizer(path: Path, *, adds_bos: bool = False, vocab: int = VOCAB, **fields: object) -> None:
    tokenizer = byte_tokenizer(vocab)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(path / "tokenizer.json"))
    own = {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(path / "tokenizer_config.json", own | fields)
