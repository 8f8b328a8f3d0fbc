"""The fixed texts of a chat template, tokenized once.

A default system message and the words between turns are the same in every prompt, and are most of a short one. Special
tokens divide a text into passages that the tokenizer reads independently, so a prompt's ids are those of its passages,
concatenated. Invariants: nothing that a client has sent is cached, since others could detect it by timing; the ids
equal those of the whole text, since a tokenizer that does not read passages independently gets no cache.
"""

import re
from collections.abc import Callable
from typing import Final, Self

import msgspec

# Normalizers and pre-tokenizers that never look beyond a passage.
PIECEWISE: Final = ("ByteLevel", "Digits", "NFC", "Split")

Encode = Callable[[list[str]], list[list[int]]]
"""Encodes each text independently of the others."""


class _Step(msgspec.Struct, frozen=True):
    """A normalizer or pre-tokenizer: what happens to a text before it is divided into tokens."""

    type: str
    add_prefix_space: bool = False
    pretokenizers: tuple["_Step", ...] = ()

    @property
    def piecewise(self) -> bool:
        if self.type == "Sequence":
            return bool(self.pretokenizers) and all(step.piecewise for step in self.pretokenizers)
        return self.type in PIECEWISE and not self.add_prefix_space


class _Added(msgspec.Struct, frozen=True):
    """A token that is recognised in a text before all else."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True

    @property
    def plain(self) -> bool:
        return not (self.single_word or self.lstrip or self.rstrip or self.normalized)


class _Layout(msgspec.Struct, frozen=True):
    added_tokens: tuple[_Added, ...] = ()
    pre_tokenizer: _Step | None = None
    normalizer: _Step | None = None
    truncation: dict[str, object] | None = None

    @property
    def piecewise(self) -> bool:
        steps = [step for step in (self.normalizer, self.pre_tokenizer) if step is not None]
        plain = bool(self.added_tokens) and all(token.plain for token in self.added_tokens)
        return plain and self.truncation is None and all(step.piecewise for step in steps)


class Passages:
    """Encodes short texts, from cached passages where it can."""

    def __init__(self, marks: list[str], encode: Encode) -> None:
        self._known = dict(zip(marks, encode(marks), strict=True))
        longest_first = sorted(marks, key=len, reverse=True)
        self._cuts = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @classmethod
    def of(cls, tokenizer: bytes, encode: Encode) -> Self | None:
        """For a tokenizer's JSON. None if the tokenizer may read a passage differently within its text."""
        layout = msgspec.json.decode(tokenizer, type=_Layout)
        return cls([token.content for token in layout.added_tokens], encode) if layout.piecewise else None

    def learn(self, text: str, encode: Encode, *, without: str) -> None:
        """Cache the passages of `text`, which the template wrote, except those that contain `without`."""
        own = [passage for passage in self._cut(text) if without not in passage]
        self._known.update(zip(own, encode(own), strict=True))

    def ids(self, text: str, encode: Encode) -> list[int]:
        passages = self._cut(text)
        read = iter(encode([passage for passage in passages if passage not in self._known]))
        found: list[int] = []
        for passage in passages:
            found += self._known[passage] if passage in self._known else next(read)
        return found

    def _cut(self, text: str) -> list[str]:
        return [passage for passage in self._cuts.split(text) if passage]
