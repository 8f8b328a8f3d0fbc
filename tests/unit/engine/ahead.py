"""A runner that computes as a device does: later, in the order of submission, with inputs that only it knows."""

from collections import deque

from worker.engine.batch import Batch, Sampled
from worker.engine.runner import Runner


class _Later:
    def __init__(self, queue: "Ahead", batch: Batch) -> None:
        self._queue, self._batch = queue, batch
        self.sampled: Sampled | Exception | None = None

    def compute(self, inner: Runner, before: list[int]) -> list[int]:
        """The ids that it samples."""
        ids = self._batch.ids
        for place in (ids < 0).nonzero()[0].tolist():
            ids[place] = before[~ids[place]]
        try:
            self.sampled = inner.submit(self._batch).result()
        except Exception as error:  # noqa: BLE001 - given to who asks for the result
            self.sampled = error
            return [0] * len(self._batch.samples)
        return [token if 0 <= token < inner.vocab_size else 0 for token in self.sampled.ids]

    def result(self) -> Sampled:
        self._queue.compute_until(self)
        assert self.sampled is not None
        if isinstance(self.sampled, Exception):
            raise self.sampled
        return self.sampled


class Ahead:
    """One step ahead of a runner that is not. Nothing is computed before its result is asked for, so what the host has
    given away too early by then shows.
    """

    def __init__(self, inner: Runner) -> None:
        self._inner = inner
        self.vocab_size = inner.vocab_size
        self.block_size = inner.block_size
        self.blocks_total = inner.blocks_total
        self.context_length = inner.context_length
        self.steps_ahead = 1
        self._queue: deque[_Later] = deque()
        self._before: list[int] = []

    def submit(self, batch: Batch) -> _Later:
        assert len(self._queue) <= self.steps_ahead, "a result was not taken"
        later = _Later(self, batch)
        self._queue.append(later)
        return later

    def compute_until(self, last: _Later) -> None:
        while last.sampled is None:
            self._before = self._queue.popleft().compute(self._inner, self._before)

    def close(self) -> None:
        self._inner.close()
