"""A runner that fails whoever is in its steps ends the engine; a request that spoils its own steps ends alone."""

import pytest

from tests.unit.engine.builders import Transcript, drain, make_engine, make_request, make_runner
from worker.engine.batch import Batch, Sampled
from worker.engine.streak import STEPS_MAX, RunnerBroken, Streak

DEAD = RuntimeError("the device is gone")


class Dying:
    """Raises in steps of these numbers, counted from 0."""

    def __init__(self, *failing: int) -> None:
        self._inner = make_runner()
        self.vocab_size = self._inner.vocab_size
        self.block_size = self._inner.block_size
        self.blocks_total = self._inner.blocks_total
        self.context_length = self._inner.context_length
        self.steps_ahead = 0
        self._failing = failing
        self._steps = 0

    def submit(self, batch: Batch) -> Sampled:
        self._steps += 1
        if self._steps - 1 in self._failing:
            raise DEAD
        return self._inner.submit(batch)

    def close(self) -> None:
        pass


def one_after_the_other(*failing: int, requests: int) -> Transcript:
    """Of one token each."""
    engine = make_engine(Dying(*failing), sequences_max=1)
    for number in range(requests):
        engine.add(make_request(f"r{number}", max_tokens=1))
    return drain(engine)


def test_a_dead_runner_ends_the_engine_after_its_requests_were_told() -> None:
    engine = make_engine(Dying(*range(100)), sequences_max=1)
    for number in range(STEPS_MAX + 1):
        engine.add(make_request(f"r{number}"))
    told = [done.request for _ in range(STEPS_MAX) for done in engine.step().done]
    assert told == [f"r{number}" for number in range(STEPS_MAX)]
    with pytest.raises(RunnerBroken) as broken:
        engine.step()
    assert broken.value.__cause__ is DEAD


def test_a_step_that_lands_between_begins_anew() -> None:
    said = one_after_the_other(0, 1, 3, 4, 6, 7, requests=9)
    assert [name for name, done in said.done.items() if done.error is None] == ["r2", "r5", "r8"]


def test_one_request_in_many_failed_steps_is_not_the_runner_s_end() -> None:
    streak = Streak()
    for _ in range(STEPS_MAX + 1):
        streak.failed(DEAD, {"r"})
    streak.check()
    streak.failed(DEAD, {"s"})
    with pytest.raises(RunnerBroken):
        streak.check()
