"""Byte-level BPE's alphabet: each byte written as one printable character. Knows no tokenizer and no file.

Source: Radford et al., 2019, the encoder of GPT-2.
"""

from functools import cache


def bytes_of(text: str) -> bytes:
    """The bytes that a token stands for; a character outside the alphabet stands for itself."""
    return text.translate(_byte_of_character()).encode(errors="surrogateescape")


@cache
def _byte_of_character() -> dict[int, int]:
    """A byte is written as itself where that is printable Latin-1, otherwise as the next free character from U+0100 on.
    Bytes from 128 on are returned as Python escapes them, as half surrogates, which no text contains.
    """
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    of_byte = {byte: byte for byte in itself} | {0x100 + n: byte for n, byte in enumerate(others)}
    return {character: byte if byte < 0x80 else 0xDC00 + byte for character, byte in of_byte.items()}
