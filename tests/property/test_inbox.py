"""A lossy bus between workers that number their items and a gateway that reads.

Whatever is dropped, repeated or sent twice, the reader gets a true beginning of what its own worker sent, and a loss is
known at the next roll at the latest.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.dispatch.inbox import Inbox
from shared import wire
from tests.unit.dispatch.samples import accepted, attempt, chunk, end, entry, frame, roll

WORKERS = st.sampled_from(["w1", "w2"])


class LossyBus(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.inbox = Inbox()
        self.attempt = attempt()
        self.inbox.add(self.attempt)
        self.sent: dict[str, list[wire.Chunk]] = {"w1": [], "w2": []}
        self.started: set[str] = set()
        self.ended: set[str] = set()
        self.read: list[wire.Chunk] = []
        self.lost = False
        self.undelivered: set[str] = set()  # workers of whom something was dropped since their last roll

    def deliver(self, worker: str, *items, dropped: bool) -> None:
        if dropped:
            self.undelivered.add(worker)
            return
        verdicts = self.inbox.on_frame(frame(*items, worker=worker), 1.0)
        self.lost = self.lost or bool(verdicts.lost)
        self.read += self.attempt.take()

    @rule(worker=WORKERS, dropped=st.booleans())
    def accept(self, worker: str, dropped: bool) -> None:
        if worker not in self.started:
            self.started.add(worker)
            self.deliver(worker, accepted(), dropped=dropped)

    @rule(worker=WORKERS, dropped=st.booleans(), count=st.integers(1, 3))
    def generate(self, worker: str, dropped: bool, count: int) -> None:
        if worker not in self.started or worker in self.ended:
            return
        first = len(self.sent[worker]) + 1
        new = [chunk(seq, text=f"{worker}:{seq}") for seq in range(first, first + count)]
        self.sent[worker] += new
        self.deliver(worker, *new, dropped=dropped)

    @rule(worker=WORKERS, back=st.integers(1, 4))
    def repeat(self, worker: str, back: int) -> None:
        """After a reconnect a worker sends again what it sent last."""
        if worker not in self.undelivered and worker in self.started:
            self.deliver(worker, accepted(), *self.sent[worker][-back:], dropped=False)

    @rule(worker=WORKERS, dropped=st.booleans())
    def finish(self, worker: str, dropped: bool) -> None:
        if worker in self.started and worker not in self.ended:
            self.ended.add(worker)
            self.deliver(worker, end(len(self.sent[worker]) + 1), dropped=dropped)

    @rule(worker=WORKERS)
    def roll(self, worker: str) -> None:
        """Rolls that arrive: after one, the gateway's picture of its own worker is true or the attempt is over."""
        entries = [entry(len(self.sent[worker]))] if worker in self.started - self.ended else []
        self.deliver(worker, roll(*entries), dropped=False)
        self.undelivered.discard(worker)
        if self.attempt.worker == worker:
            whole = self.attempt.seq == len(self.sent[worker]) and worker not in self.ended
            assert whole or self.lost or self.attempt.end is not None

    @invariant()
    def what_was_read_is_a_true_beginning(self) -> None:
        if not hasattr(self, "attempt"):
            return
        owner = self.attempt.worker
        expected = self.sent[owner] if owner is not None else []
        assert self.read == expected[: len(self.read)]
        if self.attempt.end is not None:
            assert self.read == expected
            assert not self.lost


LossyBus.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLossyBus = LossyBus.TestCase
