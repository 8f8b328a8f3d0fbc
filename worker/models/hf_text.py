"""The text part of a model folder: tokenizer, template, special tokens and end tokens. Knows no weights.

As the `transformers` library reads it: tokenizer.json encodes, and its post-processor alone decides whether a bare
prompt gets a BOS; a chat_template.jinja goes before the template in tokenizer_config.json. An answer ends at every id
that any of tokenizer_config.json, generation_config.json and config.json names.
"""

import warnings
from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Tokenizer

from worker.models.checkpoint import ModelFolder
from worker.models.errors import ModelFileError
from worker.models.first_space import skips_first_space
from worker.models.hf_tokens import token_bytes
from worker.models.json_file import Fields
from worker.models.openable import check_openable
from worker.models.text import ModelText

TOKENIZER, CONFIG = "tokenizer.json", "tokenizer_config.json"
ID_DIGITS_MAX = 9
IDS_MAX = 10_000_000  # forty times the largest vocabulary; the tokenizer makes room for each id below its greatest
EXTRA = ("extra_special_tokens", "additional_special_tokens")  # an object of named ones, or a list
ADDED = "added_tokens_decoder"
NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


def read_text(folder: ModelFolder, vocab_size: int) -> ModelText:
    """`vocab_size`: rows of the logits, which end ids must be below. Raises ModelFileError."""
    config = _config(folder)
    tokenizer = _tokenizer(folder, config)
    bos_id = _bos_of_prompts(folder, tokenizer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if (greatest := max(vocabulary.values(), default=0)) >= IDS_MAX:
        raise ModelFileError(f"{folder.path / TOKENIZER}: a token has the id {greatest}, which no vocabulary has")
    added = tokenizer.get_added_tokens_decoder()
    special = {token for token, entry in added.items() if entry.special and token < vocab_size}
    tokens = _with_rows(folder, token_bytes(tokenizer, str(folder.path / TOKENIZER)), tokenizer, vocab_size)
    own_bos = vocabulary.get(_content(config, "bos_token") or "")
    return ModelText(
        tokenizer_json=tokenizer.to_str().encode(),
        chat_template=_template(folder, config),
        bos_id=own_bos if bos_id is None else bos_id,
        eos_ids=_eos_ids(folder, vocabulary.get(_content(config, "eos_token") or ""), vocab_size),
        add_bos=bos_id is not None,
        special_ids=tuple(sorted(special)),
        tokens=tokens,
        skips_first_space=skips_first_space(tokenizer, tokens),
    )


def _with_rows(
    folder: ModelFolder, tokens: tuple[bytes, ...], tokenizer: Tokenizer, vocab_size: int
) -> tuple[bytes, ...]:
    """Only the tokens for which the model has rows. Fine-tuning may have added tokens without rows, for padding for
    example: no answer can contain them, and no prompt may. That all ordinary tokens have rows is checked elsewhere.
    """
    rowless = sorted(set(tokenizer.get_vocab(with_added_tokens=True).values()).difference(range(vocab_size)))
    if not rowless or not set(rowless) <= tokenizer.get_added_tokens_decoder().keys():
        return tokens
    warnings.warn(
        f"{folder.path / TOKENIZER}: the model has no rows for added tokens from {rowless[0]} on", stacklevel=2
    )
    return tokens[:vocab_size]


def _config(folder: ModelFolder) -> Fields:
    """tokenizer_config.json; older folders name the special and the added tokens in files of their own."""
    config = folder.fields(CONFIG, optional=True)
    older = folder.fields("special_tokens_map.json", optional=True)
    named = {key: value for key, value in older.values.items() if key in (*NAMED, *EXTRA)}
    values = named | config.values
    if ADDED not in values:
        ids = folder.fields("added_tokens.json", optional=True)
        values[ADDED] = {str(ids.integer(content, least=0)): {"content": content} for content in ids.values}
    return Fields(config.place, values)


def _tokenizer(folder: ModelFolder, config: Fields) -> Tokenizer:
    """tokenizer.json, with the tokens that tokenizer_config.json adds or calls special."""
    path = folder.path / TOKENIZER
    if not path.exists():
        raise ModelFileError(f"{path}: missing (a model folder must have one; a tokenizer.model alone is not enough)")
    check_openable(path)
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for all that can be wrong
        raise ModelFileError(f"{path}: not a tokenizer ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for token, added in _added(config):
        (tokenizer.add_special_tokens if added.special else tokenizer.add_tokens)([added])
        if (found := tokenizer.token_to_id(added.content)) != token:
            raise ModelFileError(f"{config.place}: token {token} ({added.content!r}) is {found} by {TOKENIZER}")
    known = {added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special}
    named = dict.fromkeys(name for name in _named(config) if name not in known)
    present = [content for content in named if tokenizer.token_to_id(content) is not None]
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in present])
    return tokenizer


def _named(config: Fields) -> list[str]:
    """Every token that the config calls special."""
    found = [_content(config, key) for key in NAMED]
    for key in EXTRA:
        several = config.values.get(key)
        members = list(config.inner(key).values.values()) if isinstance(several, dict) else config.items(key)
        found += [_content(Fields(config.place, {key: member}), key) for member in members]
    return [content for content in found if content is not None]


def _added(config: Fields) -> Iterator[tuple[int, AddedToken]]:
    decoder = config.inner(ADDED)
    for number in sorted(decoder.values, key=lambda key: (len(key), key)):
        entry = decoder.inner(number)
        if not (number.isascii() and number.isdecimal() and len(number) <= ID_DIGITS_MAX):
            raise ModelFileError(f"{decoder.place}: {number!r} is no token id")
        flags: dict[str, Any] = {
            key: entry.flag(key, default=False) for key in ("special", "normalized", "lstrip", "rstrip", "single_word")
        }
        yield int(number), AddedToken(entry.text("content"), **flags)


def _content(config: Fields, key: str) -> str | None:
    """A special token's text: the field is the text, or an object that contains it."""
    value = config.values.get(key)
    if isinstance(value, dict):
        return config.inner(key).text("content")
    return config.text(key) if value is not None else None


def _bos_of_prompts(folder: ModelFolder, tokenizer: Tokenizer) -> int | None:
    """The token that the post-processor puts in front of a text. Tokens that it appends would end the prompt, and are
    left out.
    """
    try:
        bare, whole = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    except Exception as error:  # as above: it lacks a token for unknown text
        raise ModelFileError(f"{folder.path / TOKENIZER}: cannot encode a text ({error})") from error
    added = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), 0)
    if added > 1:
        raise ModelFileError(f"{folder.path / TOKENIZER}: not supported: a post-processor that adds {added} tokens")
    return whole[0] if added else None


def _template(folder: ModelFolder, config: Fields) -> str | None:
    """The template for conversations without tools; None where the folder has none by that name."""
    path = folder.path / "chat_template.jinja"
    if path.exists():
        check_openable(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: cannot be read: {error}") from error
    value = config.values.get("chat_template")
    if not isinstance(value, list):
        return config.text("chat_template") if value is not None else None
    named = [Fields(f"{config.place}: chat_template", entry) for entry in value if isinstance(entry, dict)]
    templates = {entry.text("name"): entry.text("template") for entry in named}
    if "default" not in templates:
        warnings.warn(f"{config.place}: none of the chat templates is named default: no chat", stacklevel=2)
    return templates.get("default")


def _eos_ids(folder: ModelFolder, own: int | None, vocab_size: int) -> tuple[int, ...]:
    found = [own] if own is not None and own < vocab_size else []
    for name in ("generation_config.json", "config.json"):
        fields = folder.fields(name, optional=True)
        for token in fields.items("eos_token_id"):
            if not isinstance(token, int) or isinstance(token, bool):
                raise ModelFileError(f"{fields.place}: field eos_token_id is {fields.values['eos_token_id']!r}")
            if 0 <= token < vocab_size:
                found.append(token)
            else:
                warnings.warn(f"{fields.place}: eos_token_id {token} is no token and ends nothing", stacklevel=2)
    return tuple(dict.fromkeys(found))
