"""Whatever the pace of the reader, it gets everything, in order, choice by choice."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.dispatch.chunks import CHUNK_BYTES, MERGE_ABOVE, ChunkBuffer
from shared import wire

CHUNKS = st.lists(
    st.tuples(st.integers(0, 3), st.lists(st.integers(0, 2**32 - 1), max_size=3), st.text(max_size=4), st.booleans()),
    max_size=300,
)


def as_wire(seq: int, choice: int, ids: list[int], text: str, *, logprobs: bool) -> wire.Chunk:
    told = tuple(wire.TokenLogprob(id=token, logprob=-1.0, text=b"") for token in ids) if logprobs else None
    return wire.Chunk(
        request="r", attempt=1, seq=seq, choice=choice, ids=wire.pack_ids(ids), text=text, finish=None, logprobs=told
    )


@given(CHUNKS, st.booleans())
def test_what_is_taken_is_what_was_pushed(chunks, logprobs: bool) -> None:
    buffer = ChunkBuffer(bytes_max=10**9)
    pushed: list[wire.Chunk] = []
    taken: list[wire.Chunk] = []
    for seq, (choice, ids, text, read) in enumerate(chunks, start=1):
        chunk = as_wire(seq, choice, ids, text, logprobs=logprobs)
        pushed.append(chunk)
        assert buffer.push(chunk)
        if read:
            taken += buffer.take()
    taken += buffer.take()
    assert buffer.take() == []
    for choice in range(4):
        want = [chunk for chunk in pushed if chunk.choice == choice]
        got = [chunk for chunk in taken if chunk.choice == choice]
        assert b"".join(chunk.ids for chunk in got) == b"".join(chunk.ids for chunk in want)
        assert "".join(chunk.text for chunk in got) == "".join(chunk.text for chunk in want)
        assert [entry for chunk in got for entry in chunk.logprobs or ()] == [
            entry for chunk in want for entry in chunk.logprobs or ()
        ]


@given(st.integers(1, 200))
def test_an_unread_stream_stays_within_its_bound_or_says_so(count: int) -> None:
    bytes_max = 10 * CHUNK_BYTES
    buffer = ChunkBuffer(bytes_max)
    within = [buffer.push(as_wire(seq, 0, [seq], "ab", logprobs=False)) for seq in range(1, count + 1)]
    assert all(within) == (count * (CHUNK_BYTES + 6) <= bytes_max)


def test_many_choices_do_not_make_every_push_a_merge() -> None:
    buffer = ChunkBuffer(bytes_max=10**9)
    for seq in range(1, 4 * MERGE_ABOVE + 1):
        buffer.push(as_wire(seq, seq % (2 * MERGE_ABOVE), [seq], "x", logprobs=False))
    assert len(buffer.take()) >= 2 * MERGE_ABOVE


def test_the_last_chunk_of_a_choice_keeps_its_finish() -> None:
    buffer = ChunkBuffer(bytes_max=10**9)
    for seq in range(1, 2 * MERGE_ABOVE):
        buffer.push(as_wire(seq, 0, [seq], "x", logprobs=False))
    buffer.push(wire.Chunk(request="r", attempt=1, seq=2 * MERGE_ABOVE, choice=0, ids=b"", text="", finish="stop"))
    chunks = buffer.take()
    assert [chunk.finish for chunk in chunks].count("stop") == 1
    assert chunks[-1].finish == "stop"
