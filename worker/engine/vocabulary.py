"""The engine's view of a tokenizer: the bytes of each token, and which tokens end a text."""

from typing import Protocol


class Vocabulary(Protocol):
    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]:
        """Every one of them ends a text."""
        ...

    @property
    def skips_first_space(self) -> bool:
        """One space at the very start of a text is the tokenizer's own and not shown, as SentencePiece has it. An
        output that continues visible text is not at the start.
        """
        ...

    def token_bytes(self, token: int, /) -> bytes:
        """The token's part of the UTF-8 text, perhaps half a character; `b""` for a special token."""
        ...
