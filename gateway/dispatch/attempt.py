"""One attempt at one request, as the gateway knows it: where it is, what has arrived, how it ended.

Owns the order of its chunks and its one-way states. Pure but for the events that wake its waiters; does no I/O.

    queued ──bind──► running ──end / lost──► over        `left` may be set in any of them: the reader is gone, and what
       └──── taken back, refused, lost ───────┘          remains is to stop the work and to see that it is billed

Invariant: `over` is reached exactly once, and with it either `end` (the worker bills) or `billed_here`.
"""

import asyncio
from typing import Literal

from gateway.dispatch.chunks import ChunkBuffer
from gateway.errors import GatewayError, InvalidRequest, RequestFailed, Unavailable, WorkerLost
from shared import wire

Received = Literal["new", "repeat", "hole", "slow"]


class Attempt:
    """State of (request, attempt). `now` values are monotonic seconds."""

    def __init__(self, job: wire.Job, pool: str, now: float, *, reader_bytes_max: int) -> None:
        self.job = job
        self.pool = pool
        self.opened_at = now
        self.sequence: int | None = None  # the job's number in its queue, once published
        self.published_at: float | None = None
        self.publications = 0  # how often it was published: more than once after a NATS restart
        self.unseen_since: float | None = None  # since when it has left its queue without a worker showing it
        self.workerless_since: float | None = None  # since when it is queued without any live worker of its model
        self.worker: str | None = None
        self.bound_at: float | None = None
        self.first_token_at: float | None = None
        self.seq = 0  # of the last chunk received
        self.tokens = [0] * job.choices  # received, by choice
        self.end: wire.End | None = None
        self.error: GatewayError | None = None
        self.left: wire.CancelReason | None = None
        self.billed_here = False
        # Done once its number in the queue is known, or publishing has failed.
        self.publishing: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # fires when it has waited, or run, for as long as it may
        self.answered = asyncio.Event()  # set when bound, failed or over: `open` returns then
        self.bound = asyncio.Event()  # set when bound or over
        self.readable = asyncio.Event()
        self.over = asyncio.Event()
        self._buffer = ChunkBuffer(reader_bytes_max)
        self._wanted = 1

    @property
    def request(self) -> str:
        return self.job.request

    @property
    def trace(self) -> str:
        """The id of the trace that its job is a part of."""
        return self.job.traceparent[3:35]

    @property
    def sampled(self) -> bool:
        """Whether that trace is recorded."""
        return self.job.traceparent.endswith("-01")

    @property
    def prompt_tokens(self) -> int:
        return self.job.prompt_tokens

    @property
    def completion_tokens(self) -> int:
        return self.end.completion_tokens if self.end is not None else sum(self.tokens)

    @property
    def unread(self) -> bool:
        """Whether nobody reads its output any more: then only its end matters, and a gap in its chunks does no harm."""
        return self.left is not None or self.error is not None

    def bind(self, worker: str, now: float) -> None:
        """Ownership: the first worker that shows the attempt owns it."""
        assert self.worker is None, "an attempt is bound once"
        self.worker = worker
        self.bound_at = now
        self.bound.set()
        self.answered.set()

    def receive(self, chunk: wire.Chunk, now: float) -> Received:
        """Accept a chunk of the bound worker. A `hole` (a gap in `seq`) changes nothing: the missing chunk will never
        arrive.
        """
        if chunk.seq <= self.seq:
            return "repeat"
        if chunk.seq > self.seq + 1 and not self.unread:
            return "hole"
        if not 0 <= chunk.choice < len(self.tokens):
            return "hole"  # the worker is broken; others in its frame must not suffer for it
        self.seq = chunk.seq
        if self.first_token_at is None:
            self.first_token_at = now
        self.tokens[chunk.choice] += wire.packed_count(chunk.ids)
        if self.unread:
            return "new"
        fits = self._buffer.push(chunk)
        if self._buffer.due(self._wanted):
            self.readable.set()
        return "new" if fits else "slow"

    async def wait(self, chunks_min: int) -> None:
        """Wait until `chunks_min` chunks are buffered (or as many as the buffer holds), or no more will come."""
        self._wanted = chunks_min
        while self.error is None and self.end is None and not self._buffer.due(chunks_min):
            self.readable.clear()
            await self.readable.wait()

    def take(self) -> list[wire.Chunk]:
        return self._buffer.take()

    def finish(self, end: wire.End) -> Received:
        """The worker's End has come: it has billed, and nothing follows."""
        if end.seq > self.seq + 1 and not self.unread:
            return "hole"
        self.seq = end.seq
        self.end = end
        if self.error is None:
            self.error = end_error(end)
        self._wake()
        return "new"

    def fail(self, error: GatewayError) -> None:
        """Set the error that the reader gets after the chunks that have arrived. Only the first call has an effect."""
        if self.error is None and self.end is None:
            self.error = error
        self.readable.set()
        self.answered.set()

    def close(self) -> None:
        """End it without a worker's End; the gateway writes the bill."""
        assert not self.over.is_set(), "an attempt ends once"
        self.billed_here = True
        self._wake()

    def _wake(self) -> None:
        self.over.set()
        self.readable.set()
        self.bound.set()
        self.answered.set()


def end_error(end: wire.End) -> GatewayError | None:
    """What a worker's End means to the client; None for a complete answer."""
    gave_up = end.outcome == "cancelled"  # by itself, or nobody would be told: it had not heard of this gateway
    message = end.message or f"The worker {'gave this request up' if gave_up else 'ended this request with an error'}."
    if end.outcome == "finished":
        return None
    if end.error == "does_not_fit":
        return InvalidRequest(message, code="context_length_exceeded")
    if end.error == "invalid_request":
        return InvalidRequest(message)
    if end.error == "shutdown":
        return Unavailable(message, retry_after_ms=1000)
    if end.error == "device_failed" or gave_up:
        return WorkerLost(message)
    return RequestFailed(message)
