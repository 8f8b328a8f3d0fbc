"""The text part of a GGUF file: its tokenizer, template and special ids. Knows no weights."""

from worker.models.errors import ModelFileError
from worker.models.first_space import skips_first_space
from worker.models.gguf_file import GgufFile
from worker.models.gguf_tokenizer import (
    CONTROL,
    build_tokenizer,
    is_sentencepiece,
    token_bytes,
    token_table,
)
from worker.models.text import ModelText

ADD_BOS_PRE = ("llama-bpe", "llama3")  # these models, and those with SentencePiece, expect it unless the file says no
TEMPLATE = "tokenizer.chat_template"
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
# Many files name the end of a text alone, and their models end a turn with one of these, which llama.cpp knows by name.
TURN_ENDS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>")


def read_text(file: GgufFile) -> ModelText:
    """Raises ModelFileError."""
    names, types = token_table(file)
    tokenizer, tokens = build_tokenizer(file), token_bytes(file)
    ends = [_token_id(file, key, len(names)) for key in END_KEYS]
    ends += [token for token, kind in enumerate(types) if kind == CONTROL and names[token] in TURN_ENDS]
    add_bos = is_sentencepiece(file) or file.metadata.get("tokenizer.ggml.pre") in ADD_BOS_PRE
    return ModelText(
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=file.require(TEMPLATE, str) if TEMPLATE in file.metadata else None,
        bos_id=_token_id(file, "bos_token_id", len(names)),
        eos_ids=tuple(dict.fromkeys(token for token in ends if token is not None)),
        add_bos=file.flag("tokenizer.ggml.add_bos_token", default=add_bos),
        special_ids=tuple(token for token, kind in enumerate(types) if kind == CONTROL),
        tokens=tuple(tokens),
        skips_first_space=skips_first_space(tokenizer, tokens),
    )


def _token_id(file: GgufFile, key: str, tokens: int) -> int | None:
    name = f"tokenizer.ggml.{key}"
    if name not in file.metadata:
        return None
    value = file.require(name, int)
    if not 0 <= value < tokens:
        raise ModelFileError(f"{file.path}: metadata field {name} is {value}, the file has {tokens} tokens")
    return value
