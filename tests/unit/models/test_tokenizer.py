import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from tests.unit.models import tiny
from tests.unit.models.tiny import Recipe
from worker.models.card import demo_model_path, read_card
from worker.models.errors import ModelFileError
from worker.models.gguf_file import GgufFile
from worker.models.gguf_tokenizer import build_tokenizer

TEXTS = [
    "The capital of France is Paris.",
    "  leading, trailing  \n\n\ttabs\r\n",
    "1234567890 and 3.14159, x86_64",
    "naïve café, Ελληνικά, Русский, 中文, 日本語, 한국어",
    "👩‍👩‍👧‍👦 🇫🇷 e\u0301 \u200b\ufeff \x00\x7f",
    "I'll don't WE'RE",
]


@pytest.fixture(scope="module")
def card():
    return read_card(demo_model_path())


@pytest.fixture(scope="module")
def tokenizer(card):
    return Tokenizer.from_str(card.tokenizer_json.decode())


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_are_the_text(card, tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert b"".join(card.vocabulary.token_bytes(i) for i in ids) == text.encode()
    assert tokenizer.decode(ids) == text


def test_digits_are_split_one_by_one(tokenizer):
    assert tokenizer.encode("in 2024", add_special_tokens=False).tokens[-4:] == ["2", "0", "2", "4"]


def test_special_tokens_are_single_and_have_no_text(card, tokenizer):
    assert tokenizer.encode("<|im_start|>user<|im_end|>", add_special_tokens=False).ids[::2] == [1, 2]
    assert len(card.special_ids) == 17
    assert all(card.vocabulary.token_bytes(i) == b"" for i in card.special_ids)


def test_the_card_of_the_demo_model(card):
    assert (card.name, card.context_length, card.vocab_size) == ("SmolLM2-135M-Instruct", 8192, 49152)
    assert (card.bos_id, card.eos_ids, card.add_bos) == (1, (2, 0), False)
    assert card.vocabulary.vocab_size == card.vocab_size
    assert "<|im_start|>" in card.chat_template


@pytest.mark.parametrize("name", ["My-Llama.Q4_K_M.gguf", "My-Llama-q8_0.gguf", "My-Llama.F16.gguf", "My-Llama.gguf"])
def test_the_name_is_the_files_without_its_quantization(tmp_path, name):
    assert read_card(Recipe().write(tmp_path / name)).name == "My-Llama"


def test_a_card_needs_no_torch():
    program = (
        "import sys; from worker.models.card import *; read_card(demo_model_path()); assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=root)


def test_rows_of_the_logits_past_the_tokens_stand_for_nothing(tmp_path):
    card = read_card(Recipe(tensors=tiny.tensors(vocab=tiny.VOCAB + 3)).write(tmp_path / "m.gguf"))
    assert card.vocab_size == card.vocabulary.vocab_size == tiny.VOCAB + 3
    assert card.vocabulary.token_bytes(tiny.VOCAB + 2) == b""


def test_a_text_ends_where_a_token_that_is_known_for_it_says_so_whatever_its_type(tmp_path):
    named = ["<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|endoftext|>", "<|eot|>"]
    types = [*tiny.TYPES, tiny.CONTROL, tiny.NORMAL, tiny.USER_DEFINED, tiny.CONTROL, tiny.CONTROL]
    tokens, first = [*tiny.TOKENS, *named], len(tiny.TOKENS)
    card = read_card(
        Recipe(tensors=tiny.tensors(vocab=len(tokens)), tokens=tokens, types=types).write(tmp_path / "m.gguf")
    )
    assert card.eos_ids == (1, first, first + 1, first + 2, first + 3)
    assert {*card.eos_ids} < {*card.special_ids}
    tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
    assert tokenizer.encode("he<|eom_id|>", add_special_tokens=False).ids[-1] == first + 1


def test_the_end_is_special_in_a_file_without_types(tmp_path):
    card = read_card(Recipe(types=[tiny.NORMAL] * tiny.VOCAB).write(tmp_path / "m.gguf"))
    assert card.special_ids == card.eos_ids == (1,)
    assert card.vocabulary.token_bytes(1) == b""


def test_user_defined_tokens_are_whole_and_have_text(tmp_path):
    card = read_card(Recipe().write(tmp_path / "m.gguf"))
    tokenizer = Tokenizer.from_str(card.tokenizer_json.decode())
    ids = tokenizer.encode("hell<tool>", add_special_tokens=False).ids
    assert [tiny.TOKENS[i] for i in ids] == ["he", "ll", "<tool>"]
    assert card.vocabulary.token_bytes(ids[-1]) == b"<tool>"


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id"])
def test_a_special_id_outside_the_tokens_is_refused(tmp_path, key, monkeypatch):
    file = GgufFile.open(Recipe().write(tmp_path / "m.gguf"))
    from worker.models.card import card_of_gguf

    file.metadata[f"tokenizer.ggml.{key}"] = 100_000
    with pytest.raises(ModelFileError, match=key):
        card_of_gguf(file)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["a", "1", "2", "3", "4", "Ġb"]),
        ("gpt-2", ["a", "1234", "Ġb"]),
        ("llama-bpe", ["a", "123", "4", "Ġb"]),
        ("llama-v3", ["a", "123", "4", "Ġb"]),
        ("qwen2", ["a", "1", "2", "3", "4", "Ġb"]),
        ("tekken", ["a", "1", "2", "3", "4", "Ġb"]),
    ],
)
def test_pre_tokenizers_cut_text_as_their_models_were_trained(tmp_path, pre, pieces):
    tokenizer = build_tokenizer(GgufFile.open(Recipe(pre=pre).write(tmp_path / "m.gguf")))
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str("a1234 b")] == pieces


def test_tekken_cuts_where_capitals_begin(tmp_path):
    tokenizer = build_tokenizer(GgufFile.open(Recipe(pre="tekken").write(tmp_path / "m.gguf")))
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str("getHTTPBody isn't\n")
    assert [piece for piece, _ in pieces] == ["get", "HTTPBody", "Ġisn", "'t", "Ċ"]


def test_qwen_joins_accents_to_their_letters_first(tmp_path):
    tokenizer = build_tokenizer(GgufFile.open(Recipe(pre="qwen2").write(tmp_path / "m.gguf")))
    assert tokenizer.encode("e\u0301").tokens == tokenizer.encode("\u00e9").tokens


def test_llama_3_takes_whole_words_and_starts_with_bos(tmp_path):
    recipe = Recipe(pre="llama-bpe", tokens=[*tiny.TOKENS[:-1], "hello"], types=[*tiny.TYPES[:-1], 1])
    card = read_card(recipe.write(tmp_path / "m.gguf"))
    assert card.add_bos
    assert json.loads(card.tokenizer_json)["model"]["ignore_merges"]
    assert Tokenizer.from_str(card.tokenizer_json.decode()).encode("hello").tokens == ["hello"]
