import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.events import DONE, EventReader, Usage, parse

STREAM = b': keep-alive\n\ndata: {"choices":[{"text":"a"}]}\n\nevent: x\ndata:{"choices":[]}\r\n\r\ndata: [DONE]\n\n'


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_however_the_bytes_arrive(cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(STREAM)]
    reader = EventReader()
    found = [payload for start, end in itertools.pairwise(bounds) for payload in reader.feed(STREAM[start:end])]
    assert found == [b'{"choices":[{"text":"a"}]}', b'{"choices":[]}', DONE]


def test_half_an_event_is_none_yet() -> None:
    reader = EventReader()
    assert reader.feed(b'data: {"choices"') == []
    assert reader.feed(b":[]}\n") == [b'{"choices":[]}']


@pytest.mark.parametrize(
    ("payload", "has_text"),
    [
        (b'{"choices":[{"text":" a"}]}', True),
        (b'{"choices":[{"text":""}]}', False),
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"content":"a"}}]}', True),
        (b'{"choices":[{"delta":{},"finish_reason":"length"}]}', False),
        (b'{"choices":[{"message":{"content":"a"}}]}', True),
        (b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}', False),
    ],
)
def test_text_is_found_in_the_answers_of_both_endpoints(payload: bytes, has_text: bool) -> None:
    assert parse(payload).has_text is has_text


def test_usage_and_errors_are_found() -> None:
    assert parse(b'{"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}').usage == Usage(5, 7)
    assert parse(b'{"choices":[],"usage":null,"error":null}').has_error is False
    assert parse(b'{"error":{"message":"gone"}}').has_error is True


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        parse(b"<html>")
