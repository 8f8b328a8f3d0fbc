"""Routes what workers send to the attempts of this gateway, and draws the conclusions: ownership, repeats, losses.

Owns the table of open attempts. Does no I/O and reads no clock: a frame and the time go in, verdicts come out.
Invariant: only the bound worker of an attempt can change it.

Core NATS delivers a connection's messages in order or not at all, and a worker sends frames and rolls over one subject
and one connection. So a hole in `seq` is final, and an attempt that a roll leaves out has been lost. Only after our own
connection was lost do workers repeat what they have sent; until then holes are ignored.
"""

from dataclasses import dataclass, field

from gateway.dispatch.attempt import Attempt
from shared import wire


@dataclass(slots=True)
class Verdicts:
    """What the caller must do after a frame."""

    cancels: list[wire.Cancel] = field(default_factory=list[wire.Cancel])  # to the frame's worker
    lost: list[Attempt] = field(default_factory=list[Attempt])
    slow: list[Attempt] = field(default_factory=list[Attempt])
    ended: list[Attempt] = field(default_factory=list[Attempt])


class Inbox:
    """All open attempts, by request id. A request has at most one at a time."""

    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}
        self._by_worker: dict[str, dict[str, Attempt]] = {}

    def __len__(self) -> int:
        return len(self._attempts)

    def attempts(self) -> list[Attempt]:
        return list(self._attempts.values())

    def of_worker(self, worker: str) -> list[Attempt]:
        return list(self._by_worker.get(worker, {}).values())

    def add(self, attempt: Attempt) -> None:
        assert attempt.request not in self._attempts, "one attempt of a request at a time"
        self._attempts[attempt.request] = attempt

    def remove(self, attempt: Attempt) -> None:
        """Forget an attempt. Idempotent."""
        if self._attempts.get(attempt.request) is attempt:
            del self._attempts[attempt.request]
        if attempt.worker is not None:
            bound = self._by_worker.get(attempt.worker, {})
            bound.pop(attempt.request, None)
            if not bound:
                self._by_worker.pop(attempt.worker, None)

    def on_frame(self, frame: wire.Frame, now: float, *, patient: bool = False) -> Verdicts:
        """`patient`: repeats may still arrive, so nothing counts as lost yet."""
        verdicts = Verdicts()
        for item in frame.items:
            if isinstance(item, wire.Roll):
                self._on_roll(frame.worker, item, now, verdicts, patient=patient)
                continue
            attempt = self._owned(frame.worker, item.request, item.attempt, now)
            if isinstance(item, wire.Accepted):
                if attempt is None:
                    verdicts.cancels.append(_duplicate(item.request, item.attempt))
            elif attempt is not None:
                self._on_output(attempt, item, now, verdicts, patient=patient)
        return verdicts

    def _owned(self, worker: str, request: str, number: int, now: float) -> Attempt | None:
        """The attempt, if `worker` owns it or becomes its owner by showing it first. None if the gateway does not have
        the attempt or another worker owns it.
        """
        attempt = self._attempts.get(request)
        if attempt is None or attempt.job.attempt != number:
            return None
        if attempt.worker is None:
            attempt.bind(worker, now)
            self._by_worker.setdefault(worker, {})[request] = attempt
        return attempt if attempt.worker == worker else None

    def _on_output(
        self, attempt: Attempt, item: wire.Chunk | wire.End, now: float, verdicts: Verdicts, *, patient: bool
    ) -> None:
        received = attempt.receive(item, now) if isinstance(item, wire.Chunk) else attempt.finish(item)
        if received == "hole":
            self._lose(attempt, verdicts, patient=patient)
        elif received == "slow":
            verdicts.slow.append(attempt)
        if attempt.end is not None:
            verdicts.ended.append(attempt)
            self.remove(attempt)

    def _on_roll(self, worker: str, roll: wire.Roll, now: float, verdicts: Verdicts, *, patient: bool) -> None:
        listed: set[str] = set()
        for entry in roll.entries:
            attempt = self._owned(worker, entry.request, entry.attempt, now)
            if attempt is None:
                verdicts.cancels.append(_duplicate(entry.request, entry.attempt))
            elif entry.seq == attempt.seq or attempt.unread:
                listed.add(entry.request)
        for attempt in self.of_worker(worker):
            if attempt.request not in listed:  # it was left out, or chunks before the roll are missing
                self._lose(attempt, verdicts, patient=patient)

    def _lose(self, attempt: Attempt, verdicts: Verdicts, *, patient: bool) -> None:
        if not patient:
            verdicts.lost.append(attempt)
            self.remove(attempt)


def _duplicate(request: str, number: int) -> wire.Cancel:
    """A worker that does not own the attempt works in vain: it must stop, and writes no bill."""
    return wire.Cancel(request=request, attempt=number, reason="duplicate")
