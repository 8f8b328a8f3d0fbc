"""The chunks of one request that have arrived and that its reader has not taken yet.

Owns their merging and the bound on their size. Pure. Invariant: for each choice, what `take` returns over time, joined,
equals what was pushed, in order, however slow the reader is.
"""

from typing import Final

import msgspec

from shared import wire

MERGE_ABOVE: Final = 64
CHUNK_BYTES: Final = 100  # bookkeeping of one chunk, roughly
LOGPROB_BYTES: Final = 80


class ChunkBuffer:
    """A buffer that merges the waiting chunks of each choice into one when its reader lags."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._chunks: list[wire.Chunk] = []
        self._bytes = 0
        self._merge_above = MERGE_ABOVE

    def push(self, chunk: wire.Chunk) -> bool:
        """Add a chunk. False if the reader is so slow that the size bound is exceeded; the chunk is added all the
        same.
        """
        self._chunks.append(chunk)
        self._bytes += _size(chunk)
        if len(self._chunks) > self._merge_above:
            self._merge()
        return self._bytes <= self._bytes_max

    def due(self, chunks_min: int) -> bool:
        """Whether to wake a reader that wants `chunks_min` chunks: they are there, or the buffer is half full."""
        return len(self._chunks) >= chunks_min or 2 * self._bytes >= self._bytes_max

    def take(self) -> list[wire.Chunk]:
        chunks, self._chunks = self._chunks, []
        self._bytes = 0
        self._merge_above = MERGE_ABOVE
        return chunks

    def _merge(self) -> None:
        by_choice: dict[int, list[wire.Chunk]] = {}
        for chunk in self._chunks:
            by_choice.setdefault(chunk.choice, []).append(chunk)
        self._chunks = [_merged(chunks) for chunks in by_choice.values()]
        self._bytes = sum(map(_size, self._chunks))
        # With many choices a merge may free little: the next merge waits until it is worthwhile.
        self._merge_above = max(MERGE_ABOVE, 2 * len(self._chunks))


def _merged(chunks: list[wire.Chunk]) -> wire.Chunk:
    last = chunks[-1]
    if len(chunks) == 1:
        return last
    logprobs = tuple(entry for chunk in chunks for entry in chunk.logprobs or ())
    return msgspec.structs.replace(
        last,
        ids=b"".join(chunk.ids for chunk in chunks),
        text="".join(chunk.text for chunk in chunks),
        logprobs=logprobs if last.logprobs is not None else None,
    )


def _size(chunk: wire.Chunk) -> int:
    size = CHUNK_BYTES + len(chunk.ids) + len(chunk.text)
    for entry in chunk.logprobs or ():
        size += LOGPROB_BYTES * (1 + len(entry.top))
    return size
