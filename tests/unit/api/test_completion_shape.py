"""What /v1/completions tells of tokens that are no whole characters."""

import json

from gateway.api.completion_shape import CompletionShape
from gateway.api.shape import AnswerSpec, Choice, TokensDetails, Usage
from shared import wire

USAGE = Usage(prompt_tokens=1, completion_tokens=4, total_tokens=5, prompt_tokens_details=TokensDetails(0))
TOP = ((7, -0.5, b"\xf0\x9f"), (8, -1.0, b"\xe4"), (1, -2.0, b""), (2, -3.0, b""))
GRIN = [b"a", b"\xf0\x9f", b"\x98", b"\x80", b"b", b"\xff", b"c"]
OFFSETS = [0, 1, 1, 1, 2, 3, 4]


def shape() -> CompletionShape:
    return CompletionShape(AnswerSpec("r", 0, "m", choices=2, logprobs=True, include_usage=False))


def entries() -> list[wire.TokenLogprob]:
    return [wire.TokenLogprob(id=9, logprob=-0.25, text=text, top=TOP) for text in GRIN]


def test_every_part_of_a_character_begins_where_the_character_does() -> None:
    choices = [Choice(number, ["a😀b\ufffdc"], entries(), "length") for number in range(2)]
    whole = json.loads(shape().whole(choices, USAGE))
    assert [choice["logprobs"]["text_offset"] for choice in whole["choices"]] == [OFFSETS, OFFSETS]


def test_a_stream_tells_the_same() -> None:
    streamed, offsets = shape(), []
    for seq, entry in enumerate(entries(), start=1):
        for choice in range(2):
            chunk = wire.Chunk(request="r", attempt=1, seq=seq, choice=choice, ids=b"", text="", logprobs=(entry,))
            told = json.loads(streamed.events(chunk).removeprefix(b"data: "))["choices"][0]
            offsets.append((choice, *told["logprobs"]["text_offset"]))
    assert offsets == [(choice, offset) for offset in OFFSETS for choice in range(2)]


def test_tokens_that_are_no_text_have_names_of_their_own() -> None:
    [choice] = json.loads(shape().whole([Choice(0, [""], entries()[1:2], "length")], USAGE))["choices"]
    assert choice["logprobs"]["tokens"] == ["bytes:\\xf0\\x9f"]
    assert choice["logprobs"]["top_logprobs"] == [{"bytes:\\xf0\\x9f": -0.25, "bytes:\\xe4": -1.0, "": -2.0}]
