"""Writes the files of a model folder other than its weights, small enough to damage."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS = "<|begin|>", "<|end|>"


def byte_tokenizer(vocab: int = 128) -> Tokenizer:
    """ASCII byte by byte, with two special tokens in front and the rest filled with words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=ord)
    tokens = [BOS, EOS, *alphabet[: vocab - 2]]
    tokenizer = Tokenizer(models.BPE({text: index for index, text in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    return tokenizer


def write_tokenizer(folder: Path, *, adds_bos: bool = False, vocab: int = 128, **config: object) -> None:
    tokenizer = byte_tokenizer(vocab)
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {"bos_token": BOS, "eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
