"""Whether a tokenizer's decoder strips a space from the front of a text, found by running the decoder. Knows no
file.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer


def skips_first_space(tokenizer: Tokenizer, tokens: Sequence[bytes]) -> bool:
    """`tokens` are the bytes of each id."""
    for token, data in enumerate(tokens):
        if data.startswith(b" ") and data.strip():
            return not tokenizer.decode([token]).startswith(" ")
    return False
