"""The reader's view of one attempt: an iterator over chunks that are in order and complete.

Owns nothing but the waiting. The run deadline and all ends come from the attempt.
"""

from typing import Self

from gateway.dispatch.attempt import Attempt
from shared import wire


class RequestStream:
    """Async iterator over non-empty lists of chunks. Ends after the worker's End.

    Raises out of `__anext__`, after all chunks that arrived: WorkerLost, RequestFailed, DeadlineExceeded, Unavailable
    (NATS away for too long, or the worker was shut down).
    """

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    @property
    def worker(self) -> str:
        assert self._attempt.worker is not None
        return self._attempt.worker

    @property
    def end(self) -> wire.End | None:
        """The worker's own counts, once it has ended; also when it was cancelled."""
        return self._attempt.end

    @property
    def prompt_tokens(self) -> int:
        return self._attempt.end.prompt_tokens if self._attempt.end is not None else self._attempt.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        return self._attempt.end.cached_tokens if self._attempt.end is not None else 0

    @property
    def completion_tokens(self) -> int:
        """Over all choices: what has arrived, and the worker's count once it has ended."""
        return self._attempt.completion_tokens

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[wire.Chunk]:
        attempt = self._attempt
        while True:
            chunks = attempt.take()
            if chunks:
                return chunks
            if attempt.error is not None:
                raise attempt.error
            if attempt.end is not None:
                raise StopAsyncIteration
            await attempt.readable.wait()
