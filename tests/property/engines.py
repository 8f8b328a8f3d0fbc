"""A fake model, and an engine whose every schedule is checked against the rules, whatever happened before."""

from collections import defaultdict
from collections.abc import Callable

from tests.unit.engine.ahead import Ahead
from tests.unit.engine.builders import VOCABULARY, make_runner
from worker.engine.batch import Batch, Sampled
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.runner import Runner
from worker.engine.schedule import Schedule
from worker.engine.scheduler import Scheduler
from worker.engine.sequence import Sequence, Status
from worker.engine.service import Service

# A thousand times the default, so that the few tokens of a test earn a turn on the floor share.
INPUT_WEIGHT, OUTPUT_WEIGHT = 1_000.0, 2_000.0


class Inspected:
    """An engine whose state is checked after each schedule. With `ahead`, a step is computed only after the next one
    has been submitted.
    """

    def __init__(self, *, blocks: int, floor_share: float = 0.2, ahead: bool = False, **config: float | None) -> None:
        inner = _Failing(make_runner(blocks=blocks), self)
        runner = Ahead(inner) if ahead else inner
        self.service = Service(input_weight=INPUT_WEIGHT, output_weight=OUTPUT_WEIGHT, floor_share=floor_share)
        options = EngineConfig(block_size=runner.block_size, context_length=runner.context_length, **config)
        self.engine = Engine(runner, VOCABULARY, options, self.service)
        self.engine._scheduler.schedule = self._schedule
        self.fails_next: Callable[[Sampled], None] | None = None
        self.failed = False
        self._running: list[Sequence] = []

    def _schedule(self) -> Schedule:
        """Looked into before anybody is charged for it, and where the engine does not take a finding for a fault of
        the runner.
        """
        plan = Scheduler.schedule(self.engine._scheduler)
        self._check_order()
        return plan

    def step(self):
        """A step of the engine; what ran before it is known to the check."""
        self._running = list(self.engine._scheduler.running)
        result = self.engine.step()
        self.engine.record_time(result, 0.001 + 0.002 * result.tokens)
        self._check_sharing()
        return result

    def _check_order(self) -> None:
        """Whoever was admitted was next in turn, and whoever was preempted had to be."""
        scheduler = self.engine._scheduler
        before = set(self._running)
        victims = [sequence for sequence in self._running if sequence.status is Status.WAITING]
        admitted = [sequence for sequence in scheduler.running if sequence not in before]
        waiting = [sequence for sequence in scheduler.waiting.sequences() if sequence not in victims]
        on_floor = [sequence for sequence in admitted if sequence.rank != sequence.tier]
        assert len(on_floor) <= 1
        ahead = defaultdict[tuple[int, str], float](float)
        for sequence in sorted(admitted, key=lambda sequence: sequence.turn):
            if sequence in on_floor:
                assert self.service.owed(sequence.tier)
            rivals = [other for other in waiting if sequence not in on_floor or other.tier == sequence.tier]
            turn = self._turn(sequence, ahead)
            assert all(turn <= self._turn(other, ahead) for other in rivals), "somebody was overtaken"
            ahead[sequence.tier, sequence.tenant] += INPUT_WEIGHT * sequence.unpaid
        if victims and admitted:
            (urgent,) = admitted
            assert all(victim.tier > urgent.tier for victim in victims)

    def _turn(self, sequence: Sequence, ahead: dict[tuple[int, str], float]) -> tuple[int, float, int]:
        """`ahead` is the cost, by tenant, of the sequences admitted before it."""
        level = self.service.level(sequence.tier, sequence.tenant) + ahead[sequence.tier, sequence.tenant]
        return (sequence.tier, level, sequence.arrival)

    def _check_sharing(self) -> None:
        """No block is in two tables unless it is full and cached."""
        self.engine.check_integrity()
        if self.failed:
            return  # what failed is not in the cache any more, though others may still hold it
        pool = self.engine._pool
        shared = {int(block) for block in (pool.counts > 1).nonzero()[0]}
        assert all(block in pool.cache._names for block in shared)


class _Failing:
    """A runner whose next step fails when its `Inspected` says so."""

    def __init__(self, inner: Runner, inspected: Inspected) -> None:
        self._inner, self._inspected = inner, inspected
        self.vocab_size = inner.vocab_size
        self.block_size = inner.block_size
        self.blocks_total = inner.blocks_total
        self.context_length = inner.context_length
        self.steps_ahead = 0

    def submit(self, batch: Batch) -> Sampled:
        sampled = self._inner.submit(batch).result()
        inspected = self._inspected
        if inspected.fails_next is not None:
            fail, inspected.fails_next = inspected.fails_next, None
            inspected.failed = True
            fail(sampled)
        return sampled

    def close(self) -> None:
        pass
