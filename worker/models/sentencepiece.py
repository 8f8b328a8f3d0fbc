"""SentencePiece's BPE (Llama 1 and 2, Mistral) as a `tokenizers` model. Knows neither GGUF nor special tokens.

SentencePiece joins, again and again, the two neighbours whose union is the piece with the highest score (Kudo and
Richardson, 2018). `tokenizers` joins by a list of pairs, first pair first; that list is derived here: every way to
cut a piece into two pieces, ordered by the piece's score. A space is written `▁`, and a character that has no
piece becomes its UTF-8 bytes, each the piece `<0xNN>`.
"""

import re

from tokenizers import Tokenizer, decoders, models, normalizers

SPACE = "▁"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def build(tokens: list[str], scores: list[float], *, unknown: str, space_in_front: bool) -> Tokenizer:
    vocab = {text: index for index, text in enumerate(tokens)}
    model = models.BPE(vocab, _merges(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces] if space_in_front else [spaces])
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if space_in_front else steps)
    return tokenizer


def bytes_of(text: str) -> bytes:
    """The bytes that a piece stands for."""
    found = BYTE_PIECE.fullmatch(text)
    return bytes.fromhex(found[1]) if found else text.replace(SPACE, " ").encode()


def _merges(vocab: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    ranked: list[tuple[float, int, int, str, str]] = []
    for piece, index in vocab.items():
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], left, right, piece[:cut], piece[cut:]))
    ranked.sort()
    return [(left, right) for *_, left, right in ranked]
