import random

import pytest
from tokenizers import Tokenizer

from tests.unit.models.tiny import VOCAB, Recipe
from worker.models.card import read_card

SPACE = "\u2581"
CONTROL, NORMAL, UNKNOWN, BYTE = 3, 1, 2, 6
LETTERS = "abcdehlo"
WORDS = [
    "he",
    "ll",
    "lo",
    "llo",
    "hello",
    "la",
    "ab",
    "abe",
    "cd",
    f"{SPACE}he",
    f"{SPACE}a",
    f"{SPACE}ab",
    f"{SPACE}{SPACE}",
]
PIECES = [
    ("<s>", CONTROL),
    ("</s>", CONTROL),
    ("<unk>", UNKNOWN),
    *((f"<0x{byte:02X}>", BYTE) for byte in range(64, 256)),
    (SPACE, NORMAL),
    *((letter, NORMAL) for letter in LETTERS),
    *((word, NORMAL) for word in WORDS),
]
TOKENS = [text for text, _ in PIECES] + [f"unused{n}" for n in range(VOCAB - len(PIECES))]
TYPES = [kind for _, kind in PIECES] + [5] * (VOCAB - len(PIECES))
SCORES = [-float(n) for n in range(len(TOKENS))]  # earlier pieces are joined first


@pytest.fixture(scope="module")
def card(tmp_path_factory):
    recipe = Recipe(
        model="llama", tokens=TOKENS, types=TYPES, scores=SCORES, extra={"tokenizer.ggml.unknown_token_id": 2}
    )
    return read_card(recipe.write(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.fixture(scope="module")
def tokenizer(card):
    return Tokenizer.from_str(card.tokenizer_json.decode())


def joined(text: str) -> list[str]:
    """SentencePiece's own procedure, written as it is defined."""
    parts = list(SPACE + text.replace(" ", SPACE))
    while True:
        unions = [parts[n] + parts[n + 1] for n in range(len(parts) - 1)]
        known = [(SCORES[TOKENS.index(union)], -n) for n, union in enumerate(unions) if union in WORDS]
        if not known:
            break
        at = -max(known)[1]
        parts[at : at + 2] = [unions[at]]
    as_bytes = [[f"<0x{byte:02X}>" for byte in part.encode()] for part in parts]
    return [piece for part, own in zip(parts, as_bytes, strict=True) for piece in ([part] if part in TOKENS else own)]


@pytest.mark.parametrize(
    "text", ["hello", "hello hello", " abe", "hell  a", "hëllo \u00e9", "cdcdab", "", "abeabe lalla"]
)
def test_pieces_are_joined_as_sentencepiece_joins_them(tokenizer, text):
    expected = joined(text) if text else []
    assert tokenizer.encode(text, add_special_tokens=False).tokens == expected


def test_random_text(tokenizer):
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chance.choices(LETTERS + "  é", k=chance.randint(1, 20)))
        assert tokenizer.encode(text, add_special_tokens=False).tokens == joined(text)


def test_the_bytes_of_the_pieces_are_the_text_after_a_space(card, tokenizer):
    ids = tokenizer.encode("hello é ab", add_special_tokens=False).ids
    assert b"".join(card.vocabulary.token_bytes(i) for i in ids) == " hello é ab".encode()
    assert tokenizer.decode(ids) == "hello é ab"
    assert card.vocabulary.skips_first_space
    assert [card.vocabulary.token_bytes(i) for i in range(3)] == [b"", b"", b""]


def test_a_prompt_starts_with_bos(card):
    assert card.add_bos
    assert card.bos_id == 0
