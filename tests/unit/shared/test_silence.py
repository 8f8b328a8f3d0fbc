"""Who is silent, and when nobody may be called so."""

from hypothesis import given
from hypothesis import strategies as st

from shared.silence import Silence


def test_a_peer_that_stops_beating_is_silent_after_the_limit() -> None:
    silence = Silence(limit_s=1.5)
    silence.own_beat(0.0)
    silence.heard("w", 0.0)
    for quarter in range(1, 9):
        silence.own_beat(quarter / 4)
        assert silence.is_silent("w", quarter / 4) == (quarter / 4 > 1.5)
    silence.heard("w", 2.1)
    assert not silence.is_silent("w", 2.2)


def test_nobody_is_silent_while_our_own_beats_do_not_come_back() -> None:
    silence = Silence(limit_s=1.5)
    silence.own_beat(0.0)
    silence.heard("w", 0.0)
    assert not silence.is_silent("w", 100.0)
    silence.own_beat(100.0)  # the bus is back: everybody's clock starts again
    assert not silence.is_silent("w", 100.0)
    for quarter in range(8):
        silence.own_beat(100 + quarter / 4)
    assert silence.is_silent("w", 101.75)


def test_after_a_reconnect_the_clock_starts_again() -> None:
    silence = Silence(limit_s=1.5)
    silence.own_beat(0.0)
    silence.heard("w", 0.0)
    silence.own_beat(0.5)
    silence.reset()
    assert not silence.is_silent("w", 2.0)
    silence.own_beat(2.0)
    assert not silence.is_silent("w", 2.5)


def test_a_peer_that_was_never_heard_is_expected_from_when_it_is_watched() -> None:
    silence = Silence(limit_s=1.0)
    for tenth in range(40):
        silence.own_beat(tenth / 10)
    assert not silence.is_silent("gw", 3.9)
    silence.watch("gw", 3.0)
    assert not silence.is_silent("gw", 3.9)
    silence.own_beat(4.3)
    assert silence.is_silent("gw", 4.3)
    silence.watch("gw", 4.3)  # watching again does not start its clock again
    assert silence.is_silent("gw", 4.3)
    assert silence.silent(4.3) == ["gw"]
    silence.forget("gw")
    assert silence.peers() == []


@given(st.floats(0.5, 10), st.lists(st.floats(0.01, 3), max_size=30), st.floats(0, 30))
def test_a_cut_that_stops_all_beats_at_once_accuses_nobody(limit: float, gaps: list[float], wait: float) -> None:
    """Whatever the rhythm was, if the peer was always heard when we were, it is never silent."""
    silence = Silence(limit_s=limit)
    now = 0.0
    for gap in gaps:
        now += gap
        silence.own_beat(now)
        silence.heard("w", now)
        assert not silence.is_silent("w", now + wait)
