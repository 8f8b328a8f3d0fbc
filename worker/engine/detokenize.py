"""Token bytes to text, as a stream that never takes anything back.

Owns the incomplete characters and possible stop strings of one choice. Invariant: the concatenated output depends only
on the concatenated input, not on how it was divided into tokens; it equals one decode of the whole, cut before the stop
string that is completed first.

An incomplete character waits for its remaining bytes. Bytes that can become no character are shown as U+FFFD, one for
each maximal part of a character (Unicode's recommended practice, and what Python's and Rust's decoders do). Of the
text, exactly the longest end that may still become a stop string waits; it is released as soon as it cannot, or when
the choice finishes.
"""

from codecs import utf_8_decode
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class StopPattern:
    """A stop string and its failure function (Knuth, Morris, Pratt 1977): `failure[i]` is the length of the longest
    proper prefix of `text` that is a suffix of `text[: i + 1]`. It makes matching linear whatever the string.
    """

    text: str
    failure: tuple[int, ...]

    def advance(self, matched: int, char: str) -> int:
        """The length of the longest prefix of `text` that ends with `char`, when `matched` ended just before."""
        while matched and self.text[matched] != char:
            matched = self.failure[matched - 1]
        return matched + (self.text[matched] == char)


def compile_stop(text: str) -> StopPattern:
    """`text` is not empty."""
    failure = [0]
    for char in text[1:]:
        matched = failure[-1]
        while matched and text[matched] != char:
            matched = failure[matched - 1]
        failure.append(matched + (text[matched] == char))
    return StopPattern(text, tuple(failure))


class Detokenizer:
    """The text of one choice. With `skip_space`, one space at its very start is dropped."""

    __slots__ = ("_bytes", "_held", "_matched", "_skip_space", "_stops")

    def __init__(self, stops: tuple[StopPattern, ...] = (), *, skip_space: bool = False) -> None:
        self._bytes = b""  # of an incomplete character
        self._skip_space = skip_space
        self._stops = stops
        self._matched = [0] * len(stops)
        self._held = ""

    def push(self, data: bytes, *, may_stop: bool = True) -> tuple[str, bool]:
        """The text that `data` makes final, and whether a stop string is complete, after which nothing follows. With
        `may_stop` false, a complete stop string counts as text.
        """
        if self._bytes:
            data = self._bytes + data
        text, used = utf_8_decode(data, "replace", False)
        self._bytes = data[used:] if used < len(data) else b""
        if self._skip_space and text:
            self._skip_space = False
            text = text.removeprefix(" ")
        return self._match(text, may_stop=may_stop) if self._stops else (text, False)

    def finish(self) -> str:
        """All text that was held back, an incomplete character as U+FFFD. Not for use after a stop string, whose text
        is cut.
        """
        text, stopped = self._match(self._bytes.decode(errors="replace"), may_stop=True)
        return text if stopped else text + self._held

    def _match(self, text: str, *, may_stop: bool) -> tuple[str, bool]:
        # If nothing is held back, no match is in progress, and most text begins none: skip examining its characters.
        if not self._held and not any(stop.text[0] in text for stop in self._stops):
            return text, False
        known = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            for index, stop in enumerate(self._stops):
                matched = stop.advance(self._matched[index], char)
                if matched == len(stop.text):
                    if may_stop:
                        return known[: end - matched], True
                    matched = stop.failure[-1]
                self._matched[index] = matched
        certain = len(known) - max(self._matched, default=0)
        self._held = known[certain:]
        return known[:certain], False
