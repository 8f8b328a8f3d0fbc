"""The bytes of each token of a `tokenizers` tokenizer, found by what its decoder does. Knows no special meaning.

Byte-level, SentencePiece's `▁` with or without byte pieces, and plain words joined by spaces (no decoder). Another
decoder is refused: text put together by the wrong rule is wrong silently.
"""

import json
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer

from worker.models import byte_level, sentencepiece
from worker.models.errors import ModelFileError

SENTENCEPIECE = ({"Metaspace"}, {"Replace"}, {"Replace", "ByteFallback"})
NO_TEXT_OF_ITS_OWN = {"Fuse", "Strip"}  # they affect the whole text, or its beginning


def token_bytes(tokenizer: Tokenizer, place: str) -> tuple[bytes, ...]:
    """By id, holes empty; special tokens have none. Raises ModelFileError, naming `place`."""
    decode = _rule(json.loads(tokenizer.to_str())["decoder"], place)
    added = tokenizer.get_added_tokens_decoder()
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    tokens = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for text, token in vocabulary.items():
        if token not in added:
            tokens[token] = decode(text)
        elif not added[token].special:
            tokens[token] = text.encode()
    return tuple(tokens)


def _rule(decoder: dict[str, Any] | None, place: str) -> Callable[[str], bytes]:
    if decoder is None:
        return _word
    steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = {step["type"] for step in steps} - NO_TEXT_OF_ITS_OWN
    if kinds == {"ByteLevel"}:
        return byte_level.bytes_of
    if kinds in SENTENCEPIECE and all(_is_space(step) for step in steps):
        return sentencepiece.bytes_of
    raise ModelFileError(f"{place}: not supported: decoder {' + '.join(sorted(kinds))}")


def _is_space(step: dict[str, Any]) -> bool:
    """Whether a step that replaces something replaces SentencePiece's mark for a space by one."""
    match step["type"]:
        case "Replace":
            return step["pattern"] == {"String": sentencepiece.SPACE} and step["content"] == " "
        case "Metaspace":
            return step["replacement"] == sentencepiece.SPACE
        case _:
            return True


def _word(text: str) -> bytes:
    return b" " + text.encode()
