"""The text part of a model: tokenizer, template and special ids, whatever the format. Knows no weights and no file."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True, kw_only=True)
class ModelText:
    tokenizer_json: bytes  # for `tokenizers.Tokenizer.from_str`; encode with it without special tokens
    chat_template: str | None
    bos_id: int | None
    eos_ids: tuple[int, ...]  # every one ends a text; the tokenizer's own is the first
    add_bos: bool  # a bare prompt gets bos_id in front; a chat template writes its own
    special_ids: tuple[int, ...]
    tokens: tuple[bytes, ...]  # what each id stands for; empty for special ones and for ids that name nothing
    skips_first_space: bool  # see `engine.vocabulary.Vocabulary`
