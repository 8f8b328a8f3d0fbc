"""What a chat template writes around its messages, tokenized once.

A default system message and the words between turns are the same in every prompt, and of a short one they are most of
the text. Special tokens cut a text into passages of which the tokenizer reads each by itself, so the ids of a prompt
are those of its passages, one after the other. Invariant: nothing that a client has sent is remembered, for others
could time it; and the ids are those of the whole text, since a tokenizer that might read passages otherwise has none.
"""

import re
from collections.abc import Callable
from typing import Final, Self

import msgspec

PIECEWISE: Final = ("ByteLevel", "Digits", "NFC", "Split")  # normalizers and pre-tokenizers that see a passage alone

Encode = Callable[[list[str]], list[list[int]]]
"""Each text by itself."""


class _Step(msgspec.Struct, frozen=True):
    """What happens to a text before it is divided into tokens."""

    type: str
    add_prefix_space: bool = False
    pretokenizers: tuple["_Step", ...] = ()

    @property
    def piecewise(self) -> bool:
        if self.type == "Sequence":
            return bool(self.pretokenizers) and all(step.piecewise for step in self.pretokenizers)
        return self.type in PIECEWISE and not self.add_prefix_space


class _Added(msgspec.Struct, frozen=True):
    """A token that is found in a text before anything else."""

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
    """The ids of short texts."""

    def __init__(self, marks: list[str], encode: Encode) -> None:
        self._known = dict(zip(marks, encode(marks), strict=True))
        longest_first = sorted(marks, key=len, reverse=True)
        self._cuts = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    @classmethod
    def of(cls, tokenizer: bytes, encode: Encode) -> Self | None:
        """For a tokenizer's JSON; None if it may read a passage otherwise than within its text."""
        layout = msgspec.json.decode(tokenizer, type=_Layout)
        return cls([token.content for token in layout.added_tokens], encode) if layout.piecewise else None

    def learn(self, text: str, encode: Encode, *, without: str) -> None:
        """Remember the passages of `text`, which is a template's, but for those that have `without` in them."""
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
