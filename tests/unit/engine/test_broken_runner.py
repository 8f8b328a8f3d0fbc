"""A runner that is broken ends all requests at once, waiting ones too: nobody could compute them any more."""

import pytest

from tests.unit.engine.ahead import Ahead
from tests.unit.engine.builders import AroundRunner, Transcript, assert_idle, make_engine, make_request
from worker.engine.batch import Batch, Sampled
from worker.engine.runner import Runner, RunnerBroken


class Dying(AroundRunner):
    """Computes so many steps, and never again."""

    def __init__(self, *, steps: int) -> None:
        super().__init__()
        self._steps_left = steps

    def submit(self, batch: Batch) -> Sampled:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise RunnerBroken("gone")
        return super().submit(batch)


@pytest.mark.parametrize("wrap", [lambda runner: runner, Ahead], ids=["in step", "ahead"])
def test_all_requests_end_with_the_step_in_which_it_broke(wrap) -> None:
    runner: Runner = wrap(Dying(steps=3))
    engine = make_engine(runner, sequences_max=2)
    for name in ("running", "beside", "waiting"):
        engine.add(make_request(name, n=1, max_tokens=50))
    said = Transcript()
    while engine.has_work:
        said.take(engine.step())
    assert {name: done.error for name, done in said.done.items()} == dict.fromkeys(
        ("running", "beside", "waiting"), "device_failed"
    )
    assert said.done["waiting"].totals.prompt_tokens == 0
    assert said.done["running"].totals.completion_tokens == len(said.ids["running", 0]) == 3
    broken = [step for step in said.steps if step.broken is not None]
    assert len(broken[0].done) == 3
    assert_idle(engine)


def test_what_comes_afterwards_ends_as_well() -> None:
    engine = make_engine(Dying(steps=0))
    for name in ("first", "second"):
        engine.add(make_request(name))
        [done] = engine.step().done
        assert (done.request, done.error) == (name, "device_failed")
    assert_idle(engine)
