"""Byte-level BPE's alphabet: each byte written as one printable character. Knows no tokenizer and no file.

Source: Radford et al., 2019, the encoder of GPT-2.
"""

from functools import cache


def bytes_of(text: str) -> bytes:
    """The bytes that a token stands for; what is not of the alphabet stands for itself."""
    table = _byte_of_character()
    return b"".join(bytes([table[c]]) if c in table else c.encode() for c in text)


@cache
def _byte_of_character() -> dict[str, int]:
    """A byte is itself where that is printable Latin-1, otherwise the next free character from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
