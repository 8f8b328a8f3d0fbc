import pytest

from worker.engine.detokenize import Detokenizer, compile_stop


def detokenizer(*stops: str) -> Detokenizer:
    return Detokenizer(tuple(compile_stop(stop) for stop in stops))


def run(pieces: list[bytes], *stops: str) -> tuple[list[str], bool]:
    """The deltas, and whether a stop string ended them."""
    stream = detokenizer(*stops)
    deltas: list[str] = []
    for piece in pieces:
        text, stopped = stream.push(piece)
        deltas.append(text)
        if stopped:
            return deltas, True
    return [*deltas, stream.finish()], False


def test_half_a_character_waits_for_its_other_half():
    assert run([b"\xf0\x9f", b"\x98\x80!"]) == (["", "\N{GRINNING FACE}!", ""], False)


def test_half_a_character_at_the_end_is_a_replacement_character():
    assert run([b"a\xe4\xbd"]) == (["a", "\N{REPLACEMENT CHARACTER}"], False)


def test_bytes_that_are_no_utf8_are_replaced_at_once():
    assert run([b"\xff", b"a"]) == (["\N{REPLACEMENT CHARACTER}", "a", ""], False)


def test_a_stop_string_over_several_tokens_never_shows():
    # H-B01: repetitions of "abc" that stop at "cab".
    deltas, stopped = run([b"abc"] * 20, "cab")
    assert (deltas, stopped) == (["ab", ""], True)


def test_a_stop_string_that_begins_at_the_first_token_leaves_nothing():
    deltas, stopped = run([b"abc"] * 20, "abcabcabcabcab")
    assert ("".join(deltas), stopped) == ("", True)


def test_a_stop_string_that_never_completes_is_flushed_at_the_end():
    deltas, stopped = run([b"abc"] * 20, "cabZ")
    assert ("".join(deltas), stopped) == ("abc" * 20, False)
    assert deltas[:2] == ["ab", "cab"]
    assert deltas[-1] == "c"


def test_only_the_end_that_may_still_match_is_held_back():
    stream = detokenizer("</answer>")
    assert stream.push(b"a < b <") == ("a < b ", False)
    assert stream.push(b"/answ") == ("", False)
    assert stream.push(b"ers>") == ("</answers>", False)


def test_a_match_that_starts_inside_a_failed_one_is_found():
    assert run([b"aa", b"aa", b"ab", b"x"], "aab") == (["", "aa", "a"], True)


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        (("bcd", "c"), "ab"),  # "c" ends first, although "bcd" begins first
        (("cd", "bcd"), "ab"),  # both end together: the first in the list
        (("bcd", "cd"), "a"),
    ],
)
def test_the_stop_string_that_ends_first_wins_and_ties_go_by_the_list(stops, expected):
    whole, one_by_one = run([b"abcde"], *stops), run([bytes([b]) for b in b"abcde"], *stops)
    assert "".join(whole[0]) == "".join(one_by_one[0]) == expected
    assert whole[1]
    assert one_by_one[1]


def test_a_replacement_character_from_the_flush_can_complete_a_stop_string():
    assert run([b"a\xe4"], "a\N{REPLACEMENT CHARACTER}") == (["", ""], False)
