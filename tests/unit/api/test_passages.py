"""Prompts read passage by passage: the same ids as of the whole text, and only what is new is tokenized."""

import functools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from gateway.admission.passages import Passages
from tests import tiny_model
from worker.models.card import demo_model_path, read_card

PROBE = "?"
TINY = msgspec.json.decode(tiny_model.tokenizer().to_str())
SYSTEM = "<|im_start|>system\nBe kind.<|im_end|>\n"
PIECES = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|im_",
    "end|>",
    "<s>",
    "<s>>",
    "system\nBe kind.",
    "\n",
    " ",
    "12",
    "é",
    "a\u0301",
    "🙂",
]


@functools.cache
def demo() -> bytes:
    return read_card(demo_model_path()).tokenizer_json


class Reader:
    """A tokenizer that notes what it is given."""

    def __init__(self, layout: bytes) -> None:
        self._tokenizer = Tokenizer.from_buffer(layout)
        self.read: list[str] = []

    def __call__(self, texts: list[str]) -> list[list[int]]:
        self.read += texts
        return [found.ids for found in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def changed(**changes: object) -> bytes:
    """The tiny model's tokenizer, with one plain mark, otherwise made."""
    return msgspec.json.encode({**TINY, "added_tokens": [token()], **changes})


def token(**flags: bool) -> dict[str, object]:
    plain = {"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {**plain, "special": True, **flags}


def learned(layout: bytes) -> Passages:
    reader = Reader(layout)
    passages = Passages.of(layout, reader)
    assert passages is not None
    passages.learn(f"{SYSTEM}<|im_start|>user\n{PROBE}<|im_end|>", reader, without=PROBE)
    return passages


@pytest.fixture(scope="module", params=["demo", "composed characters", "a mark within a mark"])
def known(request: pytest.FixtureRequest) -> tuple[Passages, Reader]:
    layout = {
        "demo": demo,
        "composed characters": lambda: msgspec.json.encode(
            {**msgspec.json.decode(demo()), "normalizer": {"type": "NFC"}}
        ),
        "a mark within a mark": lambda: changed(added_tokens=[token(), {**token(), "id": 300, "content": "<s>>"}]),
    }[request.param]()
    return learned(layout), Reader(layout)


@given(text=st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12).map("".join))
def test_the_ids_are_those_of_the_whole_text(known: tuple[Passages, Reader], text: str) -> None:
    passages, reader = known
    assert passages.ids(text, reader) == reader([text])[0]


def test_what_the_template_says_is_tokenized_once() -> None:
    passages, reader = learned(demo()), Reader(demo())
    passages.ids(f"{SYSTEM}<|im_start|>user\nhi<|im_end|>\n", reader)
    assert reader.read == ["user\nhi"]


def test_what_clients_say_is_not_remembered() -> None:
    passages, reader = learned(demo()), Reader(demo())
    for _ in range(2):
        passages.ids("<|im_start|>user\nhi<|im_end|>", reader)
    assert reader.read == ["user\nhi"] * 2


@pytest.mark.parametrize(
    "changes",
    [
        {"added_tokens": []},
        {"added_tokens": [token(lstrip=True)]},
        {"added_tokens": [token(rstrip=True)]},
        {"added_tokens": [token(single_word=True)]},
        {"added_tokens": [token(normalized=True)]},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": True}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Metaspace", "replacement": "_"}]}},
        {"normalizer": {"type": "Prepend", "prepend": "_"}},
        {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}]}},
        {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}},
    ],
)
def test_a_tokenizer_that_looks_beyond_a_passage_has_none(changes: dict[str, object]) -> None:
    reader = Reader(changed())
    assert Passages.of(changed(), reader) is not None
    assert Passages.of(changed(**changes), reader) is None
