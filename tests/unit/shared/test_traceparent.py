import pytest

from shared import traceparent
from shared.traceparent import Context

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


def test_what_is_written_is_read() -> None:
    context = Context(TRACE, SPAN, True, "a=1,b@c=2")
    assert context.header == GOOD
    assert traceparent.parse([context.header], [context.state]) == context
    assert traceparent.parse([Context(TRACE, SPAN).header]) == Context(TRACE, SPAN)


@pytest.mark.parametrize(
    ("flags", "sampled"), [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True), ("fe", False)]
)
def test_only_the_first_flag_says_sampled(flags: str, sampled: bool) -> None:
    assert traceparent.parse([f"00-{TRACE}-{SPAN}-{flags}"]) == Context(TRACE, SPAN, sampled)


@pytest.mark.parametrize("more", ["", "-", "-what comes later"])
def test_a_later_version_may_say_more(more: str) -> None:
    assert traceparent.parse([f"cc-{TRACE}-{SPAN}-01{more}"]) == Context(TRACE, SPAN, True)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        GOOD + "-",
        GOOD + "-more",
        GOOD + "\n",
        " " + GOOD,
        GOOD + " ",
        GOOD.upper(),
        GOOD.replace("-", "_"),
        f"ff-{TRACE}-{SPAN}-01",
        f"0-{TRACE}-{SPAN}-01",
        f"00-{TRACE[1:]}-{SPAN}-01",
        f"00-{TRACE}0-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN[1:]}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"cc-{TRACE}-{SPAN}-01.",
        f"cc-{TRACE}-{SPAN}-01-\x00",
        f"cc-{TRACE}-{SPAN}-01-" + "x" * 65_536,
        "\x00" * 55,
    ],
)
def test_what_is_malformed_is_no_context(header: str) -> None:
    assert traceparent.parse([header]) is None


def test_there_is_one_parent_or_none() -> None:
    assert traceparent.parse([]) is None
    assert traceparent.parse([GOOD, GOOD]) is None


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        (["a=1"], "a=1"),
        (["a=1, b=2 ,\tc=3"], "a=1,b=2,c=3"),
        (["a=1", "", "b=2"], "a=1,b=2"),
        (["a=1,,b=2,"], "a=1,b=2"),
        (["0te@vendor/x*y_z=a b!~"], "0te@vendor/x*y_z=a b!~"),
        ([",".join(f"k{n}=v" for n in range(32))], ",".join(f"k{n}=v" for n in range(32))),
        (["a=" + "v" * 256], "a=" + "v" * 256),
    ],
)
def test_a_good_state_is_kept(lines: list[str], state: str) -> None:
    assert traceparent.parse([GOOD], lines) == Context(TRACE, SPAN, True, state)


@pytest.mark.parametrize(
    "lines",
    [
        ["a"],
        ["a="],
        ["=1"],
        ["A=1"],
        ["a =1"],
        ["a=1=2"],
        ["a=1,a=2"],
        ["a=1", "a=2"],
        ["a=1\x00"],
        ["a=1\r\nx: y"],
        ["a=é"],
        ["a=" + "v" * 257],
        ["a=1," + ",".join(f"k{n}=v" for n in range(32))],
        [",".join(f"key-{n}={'v' * 60}" for n in range(10))],
    ],
)
def test_a_malformed_state_is_dropped_alone(lines: list[str]) -> None:
    assert traceparent.parse([GOOD], lines) == Context(TRACE, SPAN, True)


def test_a_child_is_another_span_of_the_trace() -> None:
    parent = Context(TRACE, SPAN, True, "a=1")
    child = parent.child()
    assert child == Context(TRACE, child.span, True, "a=1")
    assert child.span != SPAN
    assert traceparent.parse([child.header], [child.state]) == child


def test_what_nobody_records_needs_no_child() -> None:
    context = Context(TRACE, SPAN)
    assert context.child() is context
