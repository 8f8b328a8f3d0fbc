"""The reader's view of one attempt: its chunks, in order and complete.

Only waits: the run deadline and every ending come from the attempt.
"""

from collections.abc import Awaitable, Callable

from gateway.dispatch.attempt import Attempt
from shared import wire


class RequestStream:
    """The output of an attempt that a worker has accepted. `leave` is called once, when the reader is done."""

    def __init__(self, attempt: Attempt, leave: Callable[[Attempt], Awaitable[None]]) -> None:
        self._attempt = attempt
        self._leave = leave
        self._left = False

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
        """Over all choices: the tokens that arrived or, once the worker has ended it, the worker's count."""
        return self._attempt.completion_tokens

    async def next(self, chunks_min: int = 1) -> list[wire.Chunk]:
        """The next chunks: at least `chunks_min` except at the end; none after the worker's End.

        Raises, after all chunks that arrived, WorkerLost, RequestFailed, DeadlineExceeded, Unavailable (NATS away for
        too long, or the worker was shut down).
        """
        attempt = self._attempt
        await attempt.wait(chunks_min)
        chunks = attempt.take()
        if not chunks and attempt.error is not None:
            raise attempt.error
        return chunks

    async def leave(self) -> None:
        """Cancel the attempt unless it has ended. Idempotent."""
        if not self._left:
            self._left = True
            await self._leave(self._attempt)
