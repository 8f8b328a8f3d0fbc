"""A model's tokens as a table: the bytes of each id, and the ids that end a text. A `Vocabulary` of the engine."""

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class TokenTable:
    tokens: tuple[bytes, ...]
    eos_ids: frozenset[int]
    skips_first_space: bool = False

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    def token_bytes(self, token: int, /) -> bytes:
        return self.tokens[token]
