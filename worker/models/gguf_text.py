"""The text part of a GGUF file: its tokenizer, template and special ids. Knows no weights."""

from worker.models.errors import ModelFileError
from worker.models.first_space import skips_first_space
from worker.models.gguf_file import GgufFile
from worker.models.gguf_tokenizer import (
    CONTROL,
    END_KEYS,
    ENDS,
    LLAMA3,
    build_tokenizer,
    is_sentencepiece,
    token_bytes,
    token_table,
)
from worker.models.text import ModelText

TEMPLATE = "tokenizer.chat_template"


def read_text(file: GgufFile) -> ModelText:
    """Raises ModelFileError."""
    names, types = token_table(file)
    tokenizer, tokens = build_tokenizer(file), token_bytes(file)
    ends = [_token_id(file, key, len(names)) for key in END_KEYS]
    ends += [token for token, name in enumerate(names) if name in ENDS]
    add_bos = is_sentencepiece(file) or file.metadata.get("tokenizer.ggml.pre") in LLAMA3  # where the file does not say
    return ModelText(
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=file.require(TEMPLATE, str) if TEMPLATE in file.metadata else None,
        bos_id=_token_id(file, "tokenizer.ggml.bos_token_id", len(names)),
        eos_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
        add_bos=file.flag("tokenizer.ggml.add_bos_token", default=add_bos),
        special_ids=tuple(token for token, kind in enumerate(types) if kind == CONTROL),
        tokens=tuple(tokens),
        skips_first_space=skips_first_space(tokenizer, tokens),
    )


def _token_id(file: GgufFile, name: str, tokens: int) -> int | None:
    if name not in file.metadata:
        return None
    value = file.require(name, int)
    if not 0 <= value < tokens:
        raise ModelFileError(f"{file.path}: metadata field {name} is {value}, the file has {tokens} tokens")
    return value
