"""Stop strings across token borders: nothing of one is ever sent, and what was only withheld arrives at the end.

A forced token makes the answer a known repetition, so the case needs no particular model."""

from typing import Any

import pytest

from tests.e2e.api import Api, chat_body, counts, finish_of, force, text_of


def body(path: str, token: int, stop: object) -> dict[str, Any]:
    fields = {"max_tokens": 20, "stop": stop, **force(token), "stream_options": {"include_usage": True}}
    return chat_body("x", **fields) if path == "/chat/completions" else {**chat_body("x", **fields), "prompt": "x"}


@pytest.mark.parametrize("path", ["/chat/completions", "/completions"])
@pytest.mark.parametrize(
    ("stop", "text", "finish"),
    [
        (["cab"], "ab", "stop"),
        ("cab", "ab", "stop"),
        (["abcabcabcabcab"], "", "stop"),
        (["cabZ"], "abc" * 20, "length"),
        ([], "abc" * 20, "length"),
        (None, "abc" * 20, "length"),
        (["cabcab", "bcabc"], "a", "stop"),
    ],
)
def test_streamed_and_not_the_text_ends_before_the_stop_string(
    api: Api, abc_token: int, path: str, stop: object, text: str, finish: str
) -> None:
    fields = body(path, abc_token, stop)
    if path == "/completions":
        del fields["messages"]
    chunks = api.stream(path, fields)
    assert (text_of(chunks), finish_of(chunks)) == (text, finish)

    del fields["stream_options"]
    whole = api.post(path, fields).json()
    choice = whole["choices"][0]
    assert (choice["text"] if path == "/completions" else choice["message"]["content"]) == text
    assert choice["finish_reason"] == finish
    assert counts(whole) == counts(chunks[-1])


@pytest.mark.parametrize("stop", [5, [5], ["a", None], ["a"] * 5, [""], ""])
def test_stop_values_that_are_no_stop_strings(api: Api, stop: object) -> None:
    answer = api.chat(stop=stop)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stop"
