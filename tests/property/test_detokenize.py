"""The text of a choice depends on its bytes alone, not on how they were cut; and it is what one decode of the whole
gives, cut where the first stop string ends. Nothing that was given out is ever taken back."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engine.detokenize import Detokenizer, compile_stop

# Few letters, so that stop strings overlap with the text, themselves and each other.
letters = st.sampled_from(["a", "b", "\u00e9", "\U0001f600", "\ufffd"])
texts = st.text(letters, max_size=30)
stops_lists = st.lists(st.text(letters, min_size=1, max_size=6), max_size=4).map(tuple)
raw_bytes = st.lists(
    st.sampled_from([b"a", b"b", b"\xc3", b"\xa9", b"\xf0\x9f", b"\x98\x80", b"\xff", b"\xe4"]), max_size=20
)


def reference(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Cut before the stop string that ends first; of those that end together, before the first in the list."""
    for end in range(len(text) + 1):
        for stop in stops:
            if text[:end].endswith(stop):
                return text[: end - len(stop)], True
    return text, False


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


def stream(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[str, bool]:
    detokenizer = Detokenizer(tuple(compile_stop(stop) for stop in stops))
    said = ""
    for piece in pieces:
        text, stopped = detokenizer.push(piece)
        said += text
        if stopped:
            return said, True
    return said + detokenizer.finish(), False


@given(text=texts, stops=stops_lists, cuts=st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=400)
def test_text_is_cut_where_the_first_stop_string_ends_whatever_the_tokens(text, stops, cuts):
    assert stream(cut(text.encode(), cuts), stops) == reference(text, stops)


@given(pieces=raw_bytes, cuts=st.lists(st.integers(0, 200), max_size=12))
@settings(max_examples=300)
def test_any_bytes_give_the_text_of_one_decode(pieces, cuts):
    data = b"".join(pieces)
    assert stream(pieces, ()) == stream(cut(data, cuts), ()) == (data.decode(errors="replace"), False)


@given(pieces=raw_bytes, stops=stops_lists)
@settings(max_examples=300)
def test_any_bytes_with_stop_strings_give_the_cut_text(pieces, stops):
    said, _ = stream(pieces, stops)
    assert said == reference(b"".join(pieces).decode(errors="replace"), stops)[0]


@given(text=texts, stops=stops_lists.filter(bool))
@settings(max_examples=200)
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops):
    detokenizer = Detokenizer(tuple(compile_stop(stop) for stop in stops))
    said, known = "", ""
    for char in text:
        delta, stopped = detokenizer.push(char.encode())
        if stopped:
            return
        said, known = said + delta, known + char
        held = known[len(said) :]
        assert known == said + held
        assert not held or any(stop.startswith(held) for stop in stops)
        # Nor less: any end of the text that starts a stop string is still in hand.
        assert all(len(held) >= size for stop in stops for size in range(1, len(stop)) if known.endswith(stop[:size]))


@given(
    pieces=st.lists(st.text(letters, min_size=1, max_size=4), max_size=8), floor=st.integers(0, 8), stops=stops_lists
)
@settings(max_examples=300)
def test_a_stop_string_that_is_complete_too_early_is_text_and_hides_no_later_one(pieces, floor, stops):
    detokenizer = Detokenizer(tuple(compile_stop(stop) for stop in stops))
    said, stopped = "", False
    for number, piece in enumerate(pieces):
        text, stopped = detokenizer.push(piece.encode(), may_stop=number >= floor)
        said += text
        if stopped:
            break
    whole, early = "".join(pieces), len("".join(pieces[:floor]))
    ends = ((end, stop) for end in range(early + 1, len(whole) + 1) for stop in stops if whole[:end].endswith(stop))
    end, stop = next(ends, (len(whole), ""))
    assert (said if stopped else said + detokenizer.finish(), stopped) == (whole[: end - len(stop)], bool(stop))
