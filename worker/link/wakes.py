"""What this worker was told of since it last looked: jobs that were put into the queues, as they lie there.

Owns the wakes' messages, in bounded memory. Does not know whose turn it is. A wake goes to one worker alone, and with
it the job: who has nothing left from before need not ask for it, and can claim all that it was told of at once. A wake
may be lost, and its job may be gone. Invariant: `take` gives all that was told, in the order in which it was queued, or
nothing.
"""

from collections import deque
from typing import Final

from shared import jobs, subjects
from shared.nats_client import read_headers

BYTES_MAX: Final = 16 * 1024 * 1024


class Wakes:
    def __init__(self, *, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._told: dict[str, deque[jobs.Queued]] = {}  # by the jobs' subject
        self._bytes = 0

    def note(self, subject: str, data: bytes, headers: bytes) -> bool:
        """A wake has come. False, with all forgotten, if it tells too little or too much: the queues must be asked."""
        job = jobs.queued(data, read_headers(headers))
        self._bytes += len(data)
        if job is None or not data or self._bytes > self._bytes_max:
            self.take()
            return False
        self._told.setdefault(subjects.job_subject_of_wake(subject), deque()).append(job)
        return True

    def take(self) -> dict[str, deque[jobs.Queued]]:
        """All that was told since the last call."""
        told, self._told, self._bytes = self._told, {}, 0
        return told

    def seen(self, subject: str, sequence: int) -> None:
        """Whoever asked the queue has dealt with all up to this one."""
        told = self._told.get(subject)
        while told and told[0].seq <= sequence:
            self._bytes -= len(told.popleft().data)
        if told is not None and not told:
            del self._told[subject]
