"""Exports a GGUF model as a folder that other servers read: config.json, tokenizer, safetensors in bfloat16.

Invariant: the exported weights are ours rounded to bfloat16, so that a comparison is of servers and not of models.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from worker.models.card import Card, card_of_gguf
from worker.models.checkpoint_source import DIALECT
from worker.models.gguf_file import GgufFile
from worker.models.gguf_source import GgufSource
from worker.models.names import shapes


def export(gguf: Path, folder: Path) -> None:
    """`folder` exists and is empty. Raises ModelFileError."""
    file = GgufFile.open(gguf)
    card = card_of_gguf(file)
    source = GgufSource(file, card.config)
    tensors = {
        DIALECT.own(name) or name: source.read(name).to(torch.bfloat16).contiguous() for name in shapes(card.config)
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(card)))
    (folder / "tokenizer.json").write_bytes(card.tokenizer_json)
    eos = json.loads(card.tokenizer_json)["added_tokens"]
    of_id = {token["id"]: token["content"] for token in eos}
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": of_id.get(card.eos_ids[0])}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, "chat_template": card.chat_template}))


def _config(card: Card) -> dict[str, object]:
    config = card.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_eps,
        "rope_theta": config.rope.base,
        "tie_word_embeddings": config.tied,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "bos_token_id": card.bos_id,
        "eos_token_id": list(card.eos_ids),
    }
