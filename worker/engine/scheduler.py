"""Which sequences take part in the next step, with how many tokens, and who has to give way.

Owns the waiting and the running sequences and the block pool. Knows no text, no logits and no device. Invariants
between two calls: a running sequence holds the blocks that its computed tokens need, a waiting or finished one none;
no block is held twice; while there is work, every schedule has at least one token in it.

How it decides (the numbers behind it are vLLM's and SGLang's reports, 2024 to 2026):

* Running sequences first: those that lack one token (decodes), then the others (prompts, in chunks), within the budget.
* A waiting sequence is admitted when all its tokens fit, with a watermark for the others' growth, and takes these
  blocks at once: a prompt that has started never lacks room for its rest. Strictly in order of (tier, arrival): nobody
  overtakes a sequence that waits for room.
* A running sequence that needs a block when none is free preempts: the victim is of the least urgent tier, and there
  the one with the least computed, which may be the asking one. It gives up its blocks and waits, with its tokens, at
  its old place. Nobody is admitted in a step that preempted.
* The running sequence that is last in the order of victims is never preempted while there is another, so it ends, and
  then the next: every sequence ends, however small the pool. It can always grow once it is alone, because `tokens_max`
  of a sequence never exceeds the pool.
"""

from dataclasses import dataclass
from typing import NamedTuple

from worker.engine.blocks import BlockPool
from worker.engine.config import EngineConfig
from worker.engine.queue import SequenceQueue
from worker.engine.sequence import Sequence, Status


class Scheduled(NamedTuple):
    sequence: Sequence
    tokens: int  # of the gap, from `num_computed` on


@dataclass(slots=True)
class Schedule:
    entries: list[Scheduled]
    preempted: int


class Scheduler:
    def __init__(self, config: EngineConfig, pool: BlockPool) -> None:
        self._config = config
        self._pool = pool
        self._watermark_blocks = int(pool.usable * config.watermark)
        self.running = SequenceQueue()
        self.waiting = SequenceQueue()

    def add(self, sequence: Sequence) -> None:
        assert sequence.status is Status.WAITING
        assert self._blocks_for(sequence.tokens_max) <= self._pool.usable
        self.waiting.add(sequence)

    def schedule(self) -> Schedule:
        """The next step. Nothing is counted as computed yet: whoever runs it says so when it has succeeded."""
        preempted = self._grow_running()
        entries: list[Scheduled] = []
        partial: list[Sequence] = []
        for sequence in self.running:
            if len(sequence.tokens) - sequence.num_computed == 1:
                entries.append(Scheduled(sequence, 1))
            else:
                partial.append(sequence)
        budget = self._config.tokens_per_step - len(entries)
        for sequence in partial:
            budget -= self._take(sequence, budget, entries)
        if not preempted:
            self._admit(budget, entries)
        assert entries or not (self.running or self.waiting), "there is work, and none of it can be done"
        return Schedule(entries, preempted)

    def release(self, sequence: Sequence) -> None:
        """The one way out, for whatever reason, from whatever state; a second call does nothing."""
        if sequence.status is Status.FINISHED:
            return
        queue = self.running if sequence.status is Status.RUNNING else self.waiting
        queue.remove(sequence)
        self._pool.release(sequence.table.clear())
        sequence.status = Status.FINISHED

    def check_integrity(self) -> None:
        """Asserts the invariants. Holds between any two calls; when idle it says that all blocks are free."""
        assert all(sequence.status is Status.RUNNING for sequence in self.running)
        assert all(sequence.status is Status.WAITING for sequence in self.waiting)
        assert all(sequence.table.count == 0 for sequence in self.waiting), "a waiting sequence holds blocks"
        assert len(self.running) <= self._config.sequences_max
        for sequence in self.running:
            assert 0 <= sequence.num_computed < len(sequence.tokens)
            assert sequence.table.count >= self._blocks_for(sequence.num_computed)
        self._pool.check_integrity(sequence.table for sequence in self.running)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._config.block_size)

    def _take(self, sequence: Sequence, budget: int, entries: list[Scheduled]) -> int:
        """Schedule as much of the sequence's gap as the budget allows; how much that is."""
        tokens = min(len(sequence.tokens) - sequence.num_computed, budget)
        if tokens > 0:
            entries.append(Scheduled(sequence, tokens))
        return tokens

    def _grow_running(self) -> int:
        """Give each running sequence the blocks of all its tokens. How many were preempted for it."""
        preempted = 0
        block_size = self._config.block_size
        for sequence in self.running:
            # A victim of this loop waits by now, and asks for nothing.
            while len(sequence.tokens) > sequence.table.count * block_size and sequence.status is Status.RUNNING:
                if not self._allocate(sequence):
                    self._preempt(self._victim())
                    preempted += 1
        return preempted

    def _allocate(self, sequence: Sequence) -> bool:
        blocks = self._pool.allocate(self._blocks_for(len(sequence.tokens)) - sequence.table.count)
        if blocks is None:
            return False
        sequence.table.extend(blocks)
        return True

    def _victim(self) -> Sequence:
        """The least urgent tier first, in it the least work lost; among equals the last to arrive."""
        assert len(self.running) > 1, "a sequence that is alone always has room"
        return max(self.running, key=lambda sequence: (sequence.tier, -sequence.num_computed, sequence.arrival))

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._pool.release(sequence.table.clear())
        sequence.num_computed = 0
        sequence.status = Status.WAITING
        self.waiting.add(sequence)

    def _admit(self, budget: int, entries: list[Scheduled]) -> None:
        while budget > 0 and self.waiting and len(self.running) < self._config.sequences_max:
            sequence = self.waiting.head()
            # With nobody beside it to grow, the watermark would only keep a large prompt waiting for ever.
            spare = self._watermark_blocks if self.running else 0
            if self._blocks_for(len(sequence.tokens)) + spare > self._pool.free_count:
                return
            self.waiting.remove(sequence)
            allocated = self._allocate(sequence)
            assert allocated
            sequence.status = Status.RUNNING
            self.running.add(sequence)
            budget -= self._take(sequence, budget, entries)
