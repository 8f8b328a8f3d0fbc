"""Streamed text equals whole text, byte for byte, in any script: no half characters, no lost ones."""

import pytest

from tests.e2e.api import Api, chat_body, counts, finish_of, text_of

PROMPTS = [
    "讲一个故事。",
    "お話をしてください。",
    "เล่าเรื่อง",
    "احك لي قصة",
    "एक कहानी सुनाओ",
    "👨‍👩‍👧‍👦 family",
    "🇫🇷🇯🇵 flags",
    "e\u0301te\u0301",
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_streamed_text_equals_whole_text(api: Api, prompt: str) -> None:
    for tokens in (1, 2, 3, 4, 5, 6, 7, 8, 64):
        fields = chat_body(prompt, temperature=1.5, seed=7, max_tokens=tokens, ignore_eos=True)
        whole = api.post("/chat/completions", fields).json()
        chunks = api.stream("/chat/completions", {**fields, "stream_options": {"include_usage": True}})
        assert text_of(chunks) == whole["choices"][0]["message"]["content"]
        assert finish_of(chunks) == whole["choices"][0]["finish_reason"] == "length"
        assert counts(chunks[-1]) == counts(whole)


def test_forced_bytes_of_one_character_are_held_back_until_it_is_whole(api: Api, half_token: int) -> None:
    """A token that is half a character, over and over: never a character that the whole answer does not have."""
    fields = chat_body("x", max_tokens=6, temperature=0, logit_bias={str(half_token): 100})
    whole = api.post("/chat/completions", fields).json()
    assert text_of(api.stream("/chat/completions", fields)) == whole["choices"][0]["message"]["content"]
