"""The scheduler: which sequences take part in the next step, with how many tokens, and which are preempted.

Owns the waiting and the running sequences and the block pool. Knows no text, no logits and no device. Invariants
between two calls: a running sequence holds the blocks that its computed tokens need, any other sequence holds none; a
block is in two tables only if it is full; while there is work, every schedule has at least one token in it.

How it decides (the problems behind these rules are from vLLM's and SGLang's public reports, 2024 to 2026):

* Running sequences continue: each gets the blocks for its next token. Then waiting ones are admitted. Then the budget
  is divided: first sequences that lack one token (decodes), then the others (prompts, in chunks), by tier and by
  admission. Beside decodes, prompts get as much as keeps the step within its pace (`pace`).
* A waiting sequence is admitted when all its tokens fit and the watermark stays free for the others' growth. It gets
  all these blocks at once, so a prompt that has started never lacks room for its rest. Blocks in the prefix cache are
  not computed again, except the one with its last token, whose logits are needed. `WaitingQueue` says which sequence is
  next; none overtakes a sequence that waits for room.
* A running sequence that needs a block when none is free preempts one (`victims`), perhaps itself. The victim releases
  its blocks and waits, with its tokens, at its old place. In a step that preempted, only a sequence that is more urgent
  than some running ones is admitted.
* If there is no room or no place for such an urgent sequence, it preempts running ones of less urgent tiers: as many as
  needed, and none if that would not suffice. Sequences of a tier that is owed its floor share are not preempted for it.
* The floor share goes to one sequence of a tier at a time: first to a running one that still lacks tokens, then to the
  head of the waiting ones. It runs with the rank of the most urgent tier, since otherwise a stream of more urgent
  prompts would use up every step's budget before it. While it waits for room, others are admitted only by preempting
  less urgent ones, so that blocks that become free are left to it.
* The last sequence in the order of victims is never preempted while another runs. So it ends, and then the next one:
  every sequence ends, however small the pool. A sequence that is alone can always grow, because its `tokens_max` never
  exceeds the pool.
"""

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter

import numpy as np

from worker.engine import victims
from worker.engine.blocks import NO_TABLE, BlockPool, BlockTables
from worker.engine.config import EngineConfig
from worker.engine.followers import Followers
from worker.engine.pace import Pace, Work
from worker.engine.queue import WaitingQueue
from worker.engine.results import TierLoad
from worker.engine.rows import Rows
from worker.engine.schedule import Draft, Schedule
from worker.engine.sequence import Sequence, Status
from worker.engine.service import Service
from worker.engine.victims import Want

_MOST_URGENT = 0
_by_rank = attrgetter("rank", "turn")


class Scheduler:
    def __init__(self, config: EngineConfig, pool: BlockPool, service: Service) -> None:
        self._config = config
        self._block_size = config.block_size
        self._pool = pool
        self._service = service
        self._watermark_blocks = int(pool.usable * config.watermark)
        self._pace = None if config.pace is None else Pace(config.pace)
        self._turns = 0
        self._followers = Followers(config.block_size)
        self._ranks = Counter[int]()  # running sequences by rank
        self.running: dict[Sequence, None] = {}  # in the order of admission
        blocks = min(self._blocks_for(config.context_length), pool.usable)
        self._rows = Rows(config.sequences_max, blocks, config.block_size)
        self.waiting = WaitingQueue(service)

    @property
    def tables(self) -> BlockTables:
        return self._rows.tables

    @property
    def held_count(self) -> int:
        return self._followers.total

    def add(self, sequence: Sequence, followers: Iterable[Sequence] = ()) -> None:
        """Queue a sequence. `followers` have the same prompt, and wait until it is in the cache. The tenant has already
        arrived at the service.
        """
        assert sequence.status is Status.WAITING
        assert self._blocks_for(sequence.tokens_max) <= self._pool.usable
        self.waiting.add(sequence)
        self._followers.hold(sequence, followers)

    def schedule(self) -> Schedule:
        """Plan the next step. The caller reports when it is submitted (`launch`) and when it has succeeded (`advance`).
        Sequences that reach their full length with the token in flight are not in it.
        """
        preempted = self._grow_running()
        on_floor = self._hurry_owed()
        config = self._config
        draft = Draft(
            config.tokens_per_step,
            config.tokens_beside_decodes,
            decodes=self._rows.decodes(),
            prompts=self._rows.prompts,
            pace=self._pace,
        )
        preempted = self._admit(draft, preempted, on_floor=on_floor)
        schedule = draft.finish(preempted)
        assert schedule.decodes or schedule.chunks or self._waits_for_flight(), "there is work, and none can be done"
        return schedule

    def launch(self, schedule: Schedule) -> None:
        """The step is submitted: its tokens count as computed when the next one is planned."""
        schedule.ends = self._rows.launch(schedule.rows(), schedule.counts()).tolist()

    def advance(self, schedule: Schedule) -> None:
        """The step has succeeded: the full blocks that it computed become available to others, if their sequence still
        runs.
        """
        decodes, block_size = len(schedule.decodes), self._block_size
        for place in [place for place, end in enumerate(schedule.ends[:decodes]) if end % block_size == 0]:
            sequence, end = schedule.decodes[place], schedule.ends[place]
            if sequence.status is Status.RUNNING:
                self._publish(sequence, end - 1, end)
        for (sequence, tokens), end in zip(schedule.chunks, schedule.ends[decodes:], strict=True):
            if sequence.status is Status.RUNNING:
                self._publish(sequence, end - tokens, end)
                if end >= sequence.prompt_len:
                    self._queue_followers(sequence)

    def record_time(self, work: Work, seconds: float) -> None:
        """The time that a step of this work took, for planning the next ones; ignored without a pace."""
        if self._pace is not None:
            self._pace.learn(work, seconds)

    def release(self, sequence: Sequence) -> None:
        """End a sequence, for any reason and from any state. Idempotent."""
        if sequence.status is Status.RUNNING:
            self._stop(sequence)
        elif sequence.status is Status.WAITING:
            self.waiting.remove(sequence)
        elif sequence.status is Status.HELD:
            self._followers.leave(sequence)
        self._queue_followers(sequence)
        sequence.status = Status.FINISHED

    def cached_tokens(self, sequence: Sequence) -> int:
        """How many of the sequence's tokens the cache would provide if it were admitted now."""
        return len(self._want(sequence).cached) * self._block_size

    def loads(self) -> dict[int, TierLoad]:
        """The load of each rank: of the tier that sequences run as."""
        waiting, running, held = self.waiting.counts(), self._ranks, self._followers.counts
        return {
            tier: TierLoad(
                running=running[tier],
                waiting=waiting.get(tier, 0),
                held=held[tier],
                held_blocks=self._followers.blocks[tier],
                owed=self._service.owed(tier),
                blocks=self._held_alone(tier),
            )
            for tier in waiting.keys() | running.keys() | (+held).keys()
        }

    def check_idle(self) -> None:
        """Assert that no sequence is left, and that all blocks are free."""
        assert not self.running
        assert not len(self.waiting)
        self._followers.check_idle()
        assert not self._ranks
        self._pool.check_idle()

    def check_integrity(self) -> None:
        """Assert the invariants. Valid between any two calls."""
        waiting = self.waiting.sequences()
        assert len(waiting) == len(self.waiting)
        assert all(sequence.status is Status.RUNNING for sequence in self.running)
        assert all(sequence.status is Status.WAITING for sequence in waiting)
        assert all(sequence.table is NO_TABLE for sequence in waiting), "a waiting sequence holds blocks"
        assert NO_TABLE.count == NO_TABLE.computed == 0
        self._followers.check_integrity()
        assert len(self.running) <= self._config.sequences_max
        assert self._ranks == Counter(sequence.rank for sequence in self.running)
        for sequence in self.running:
            assert 0 <= sequence.num_computed < len(sequence.tokens)
            assert sequence.table.count >= self._blocks_for(sequence.num_computed)
            full = sequence.num_computed // self._block_size
            assert (self._pool.counts[sequence.table.ids[full:]] == 1).all(), "a block that is not full is shared"
        self._rows.check_integrity(self.running)
        self._pool.check_integrity(sequence.table for sequence in self.running)

    def _held_alone(self, rank: int) -> int:
        """The number of blocks that only tables of this rank hold."""
        if rank not in self._ranks:
            return 0
        if len(self._ranks) == 1:
            return self._pool.usable - self._pool.free_count
        # Not whole rows of the matrix: those are as long as the context, and this runs after every step.
        tables = [sequence.table.ids for sequence in self.running if sequence.rank == rank]
        held = np.bincount(np.concatenate(tables))
        return int(((held > 0) & (held == self._pool.counts[: len(held)])).sum())

    def _waits_for_flight(self) -> bool:
        """Whether everything left depends on a token in flight, so that nothing can run now."""
        left = [*self.running, *self.waiting.sequences()]
        return not left or any(sequence.in_flight for sequence in left)

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _queue_followers(self, leader: Sequence) -> None:
        for follower in self._followers.release(leader):
            self.waiting.add(follower)

    def _grow_running(self) -> int:
        """Give each running sequence the blocks for all its tokens. Returns how many were preempted for it."""
        preempted = 0
        for sequence in sorted(self._rows.growing(), key=_by_rank):
            # A sequence that this loop preempted is not running any more.
            while sequence.status is Status.RUNNING:
                blocks = self._pool.allocate(self._blocks_for(len(sequence.tokens)) - sequence.table.count)
                if blocks is not None:
                    sequence.table.extend(blocks)
                    break
                assert len(self.running) > 1, "a sequence that is alone always has room"
                self._preempt(victims.worst(self.running, self._pool, self._block_size))
                preempted += 1
        return preempted

    def _hurry_owed(self) -> bool:
        """Let one prompt of each tier that is owed its floor share run with the most urgent rank. Returns whether any
        does now.
        """
        owed = {rank for rank in self._ranks if rank > _MOST_URGENT and self._service.owed(rank)}
        if not owed:
            return False
        unfinished = list(self._rows.prompts)
        owed -= {sequence.tier for sequence in unfinished if sequence.rank != sequence.tier}
        hurried = {sequence.rank: sequence for sequence in reversed(unfinished) if sequence.rank in owed}
        for sequence in hurried.values():
            self._leave_rank(sequence)
            sequence.rank = _MOST_URGENT
            self._ranks[_MOST_URGENT] += 1
        return bool(hurried)

    def _publish(self, sequence: Sequence, before: int, computed: int) -> None:
        """Register the blocks that the tokens from `before` to `computed` have filled."""
        start, end = before // self._block_size, computed // self._block_size
        names = sequence.chain.names(sequence.tokens, end)[start:]
        blocks: list[int] = sequence.table.ids[start:end].tolist()
        for name, block in zip(names, blocks, strict=True):
            self._pool.cache.publish(name, block)

    def _stop(self, sequence: Sequence) -> None:
        del self.running[sequence]
        self._leave_rank(sequence)
        self._pool.release(self._rows.stop(sequence))

    def _leave_rank(self, sequence: Sequence) -> None:
        self._ranks[sequence.rank] -= 1
        if not self._ranks[sequence.rank]:
            del self._ranks[sequence.rank]

    def _preempt(self, sequence: Sequence) -> None:
        sequence.reached = max(sequence.reached, sequence.num_computed)
        self._stop(sequence)
        sequence.preemptions += 1
        sequence.status = Status.WAITING
        self.waiting.add(sequence)

    def _admit(self, draft: Draft, preempted: int, *, on_floor: bool) -> int:
        """Admit sequences in turn while there is room and budget. Returns how many this step has preempted in all."""
        if self._is_full_for_all():
            return preempted
        reserved = False  # free blocks are left to a sequence on the floor share that has no room yet
        while (sequence := self.waiting.head(strict=on_floor)) is not None:
            # At most one per step gets the floor share: the service is charged for it only when the step is launched.
            floor = not on_floor and self._service.owed(sequence.tier)
            rank = _MOST_URGENT if floor else sequence.tier
            if not draft.has_room(rank):
                break
            on_floor = on_floor or floor
            place = self._find_place(sequence, draft, preempted, reserved=reserved)
            if place is None and floor:
                reserved = True
                continue
            if place is None:
                break
            want, victims_found = place
            preempted += victims_found
            self._start(sequence, want, rank=rank)
            draft.admit(sequence)
            self.waiting.count_ahead(sequence, self._service.weighted(input_tokens=sequence.unpaid))
            if preempted:
                break
        self.waiting.settle()
        return preempted

    def _is_full_for_all(self) -> bool:
        """Whether every place is taken, and no waiting sequence is urgent enough to preempt one. Then the next in turn
        need not be found, which costs an iteration for each tenant whose counter has grown.
        """
        full = len(self.running) == self._config.sequences_max
        return full and self.waiting.most_urgent >= self._least_urgent

    def _find_place(
        self, sequence: Sequence, draft: Draft, preempted: int, *, reserved: bool
    ) -> tuple[Want, int] | None:
        """The blocks that the sequence needs, and how many were preempted for it. None if there is no room."""
        urgent = self._least_urgent > sequence.tier
        if not urgent and (reserved or preempted or len(self.running) == self._config.sequences_max):
            return None
        want = self._want(sequence)
        if not reserved and self._fits(want):
            return want, 0
        victims_found = 0 if draft.admitted else self._make_room(sequence, want)
        return (want, victims_found) if victims_found else None

    def _want(self, sequence: Sequence) -> Want:
        # At least one token is computed, since its logits are needed.
        names = sequence.chain.names(sequence.tokens, (len(sequence.tokens) - 1) // self._block_size)
        cached = self._pool.cache.find(names)
        return Want(cached, self._blocks_for(len(sequence.tokens)) - len(cached))

    def _fits(self, want: Want) -> bool:
        if len(self.running) >= self._config.sequences_max:
            return False
        # If nothing else runs, nothing else grows, and the watermark would keep a large prompt waiting for ever.
        spare = self._watermark_blocks if self.running else 0
        return want.fresh + spare <= self._pool.free_count - self._pool.free_among(want.cached)

    @property
    def _least_urgent(self) -> int:
        """The rank of the sequences that would be preempted first."""
        return max(self._ranks, default=_MOST_URGENT)

    def _make_room(self, sequence: Sequence, want: Want) -> int:
        """Preempt less urgent sequences for this one. Returns how many; 0, preempting none, if that would not
        suffice.
        """
        ranks = {rank for rank in self._ranks if rank > sequence.tier and not self._service.owed(rank)}
        candidates = [other for other in self.running if other.rank in ranks]
        if not candidates:
            return 0
        others = len(self.running) - len(candidates)
        chosen = victims.for_urgent(
            want, candidates, self._pool, others=others, spare=self._watermark_blocks, block_size=self._block_size
        )
        for victim in chosen:
            self._preempt(victim)
        return len(chosen)

    def _start(self, sequence: Sequence, want: Want, *, rank: int) -> None:
        self.waiting.remove(sequence)
        self._pool.share(want.cached)
        fresh = self._pool.allocate(want.fresh)
        assert fresh is not None
        self._rows.start(sequence, want.cached, fresh)
        sequence.rank = rank
        self._turns += 1
        sequence.turn = self._turns
        sequence.status = Status.RUNNING
        self.running[sequence] = None
        self._ranks[rank] += 1
