"""One admitted request, from dispatch to settlement.

Owns the open stream of chunks and the reservation. Closing an exchange cancels what still runs and settles what was
used, exactly once, whatever has happened. One that is closed before its end counts as cancelled. Knows nothing of HTTP.
"""

import asyncio
from contextlib import suppress
from time import monotonic

from gateway.admission.admission import Admission, Admitted
from gateway.dispatch.terms import Terms
from gateway.errors import RequestFailed
from gateway.metrics import Metrics
from gateway.protocols import Dispatcher, RequestStream
from shared import wire

GATHERED = 32  # chunks that must wait before the reader of a whole answer is woken
FIRST_CHUNK_S = 10.0  # how long headers are delayed, so that an accepted request may still fail with an HTTP status


class Exchange:
    """Holds the reservation from its creation until `close`, whether or not `open` was called."""

    def __init__(
        self, admitted: Admitted, *, admission: Admission, dispatcher: Dispatcher, metrics: Metrics, arrived_s: float
    ) -> None:
        self._admitted = admitted
        self._admission = admission
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._stream: RequestStream | None = None
        self._first: list[wire.Chunk] = []  # chunks that arrived before the first `next`
        self._last_s = 0.0  # when `next` last returned chunks
        self._settled = False
        self.finishes: list[str] = []  # of the choices that have ended
        self.first_s: float | None = None  # when the first tokens arrived

    @property
    def headers(self) -> dict[str, str]:
        return self._admitted.headers

    @property
    def choices(self) -> int:
        return self._admitted.job.choices

    @property
    def max_tokens(self) -> int:
        """How many tokens each choice may have."""
        return self._admitted.job.sampling.max_tokens

    @property
    def cached_tokens(self) -> int:
        """How many tokens of the prompts the prefix cache had; 0 until the end."""
        return self._stream.end.cached_tokens if self._stream and self._stream.end else 0

    @property
    def tokens_used(self) -> int:
        return sum(self.used)

    @property
    def used(self) -> tuple[int, int]:
        """Prompt and completion tokens; zeros while no worker has accepted."""
        return (0, 0) if self._stream is None else (self._stream.prompt_tokens, self._stream.completion_tokens)

    async def open(self, terms: Terms, run_s: float) -> None:
        """Wait for a worker. `terms` count from the request's arrival. Raises GatewayError."""
        left = terms.after(monotonic() - self._arrived_s)
        admitted = self._admitted
        self._stream = await self._dispatcher.open(admitted.job, pool=admitted.pool, terms=left, run_s=run_s)
        self._admission.started(admitted)

    async def await_first(self) -> None:
        """Wait for the first tokens, at most FIRST_CHUNK_S. Raises GatewayError if none will come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_CHUNK_S):
                self._first = await self._next()

    @property
    def has_first(self) -> bool:
        """Whether the first tokens are here and were not read yet."""
        return bool(self._first)

    async def next(self) -> list[wire.Chunk]:
        """The next chunks, in order, as they came; none after the last. Raises GatewayError when the answer cannot be
        completed.
        """
        chunks, self._first = self._first or await self._next(), []
        if chunks:
            now_s = monotonic()
            if self._last_s:
                self._metrics.itl.observe(now_s - self._last_s)
            self._last_s = now_s
            self._observe(chunks, now_s)
        return chunks

    async def gathered(self) -> list[wire.Chunk]:
        """As `next`, for a client that gets nothing before the end: after the first chunks, many at a time."""
        chunks = await self._next(1 if self.first_s is None else GATHERED)
        if chunks:
            self._observe(chunks, monotonic())
        return chunks

    async def end(self) -> wire.End:
        """After the last chunk: settle, and return the worker's own counts. Raises RequestFailed if the answer is not
        complete.
        """
        end = self._stream.end if self._stream else None
        await self.close()
        if end is None or end.outcome != "finished" or len(self.finishes) < self.choices:
            raise RequestFailed((end and end.message) or "The answer ended before it was complete.")
        return end

    async def close(self) -> None:
        """Cancel at the worker unless it has ended, then settle. Idempotent."""
        try:
            if self._stream is not None:
                await self._stream.leave()
        finally:
            if not self._settled:
                self._settled = True
                await self._admission.settle(self._admitted, *self.used)

    async def _next(self, chunks_min: int = 1) -> list[wire.Chunk]:
        assert self._stream is not None, "open comes first"
        return await self._stream.next(chunks_min)

    def _observe(self, chunks: list[wire.Chunk], now_s: float) -> None:
        if self.first_s is None:
            self.first_s = now_s
            self._metrics.ttft.observe(now_s - self._arrived_s)
        for chunk in chunks:
            if chunk.finish:
                self.finishes.append(chunk.finish)
