"""The device of a runner: the current one while it computes, and asked whether it works after an error."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from kernels.cpu import CpuOps
from kernels.reference_sampling import draw_tokens
from tests.unit.engine.device_runners import graph_runner
from tests.unit.engine.runner_conformance import batch_of, greedy
from tests.unit.models.tiny import Recipe
from worker.engine.device_context import DeviceContext
from worker.engine.graphs import Run
from worker.engine.runner import RunnerBroken
from worker.models.load import load_model

CPU = torch.device("cpu")
DEAD = torch.device("meta")  # takes work, and has no answer
BOOM = RuntimeError("boom")


def raise_in(device: torch.device) -> None:
    with DeviceContext(device).entered():
        raise BOOM


def test_an_error_on_a_device_that_works_is_left_as_it_is() -> None:
    with pytest.raises(RuntimeError) as raised:
        raise_in(CPU)
    assert raised.value is BOOM


def test_an_error_on_one_that_does_not_tells_that_nothing_more_is_computed() -> None:
    with pytest.raises(RunnerBroken, match="the device meta has failed") as raised:
        raise_in(DEAD)
    assert raised.value.__cause__ is BOOM


def test_nobody_asks_without_an_error() -> None:
    with DeviceContext(DEAD).entered():
        pass


class Device:
    """A runner over a tiny model; what its draws, its results and its recording of steps see."""

    def __init__(self, folder) -> None:
        self.fault: Exception | None = None
        self.current: list[int] = [0]
        self.seen: list[int] = []
        model = load_model(Recipe().write(folder / "tiny.gguf"), "fp32", weights="fp32")
        self.runner = graph_runner(model, CpuOps(), graphs=self, sequences_max=2, draw=self.draw)

    def draw(self, *args):
        self.look()
        return draw_tokens(*args)

    def capture(self, run: Run) -> Run:
        """Implements `Graphs`."""
        self.look()
        return run

    def look(self) -> None:
        self.seen.append(self.current[-1])
        if self.fault is not None:
            raise self.fault

    def step(self, tokens: int = 3):
        """A prompt, or a decode, which is recorded."""
        ids = list(range(2, 2 + tokens))
        pending = self.runner.submit(batch_of(self.runner, [(ids, 0, [1], greedy(tokens))]))
        wait = pending.sampled.landing.wait

        def watched():
            self.look()
            return wait()

        pending.sampled.landing.wait = watched
        return pending

    def become(self, device: torch.device) -> None:
        self.runner._context._device = device
        self.runner._context._mark = torch.zeros(1, device=DEAD if device is DEAD else CPU)

    @contextmanager
    def use(self, device: torch.device) -> Iterator[None]:
        """In place of torch's, which needs a driver."""
        self.current.append(device.index)
        yield
        self.current.pop()


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Device:
    return Device(tmp_path_factory.mktemp("model"))


@pytest.fixture
def device(made: Device) -> Iterator[Device]:
    made.seen.clear()
    yield made
    made.fault = None
    made.become(CPU)


def test_a_step_that_fails_alone_is_followed_by_others(device: Device) -> None:
    first = device.step().result()
    device.fault = BOOM
    with pytest.raises(RuntimeError) as raised:
        device.step()
    assert raised.value is BOOM
    device.fault = None
    assert device.step().result() == first


def test_a_dead_device_breaks_the_runner_when_it_takes_no_step(device: Device) -> None:
    device.fault = BOOM
    device.become(DEAD)
    with pytest.raises(RunnerBroken):
        device.step()


def test_and_when_the_result_of_one_never_comes(device: Device) -> None:
    pending = device.step()
    device.fault = BOOM
    device.become(DEAD)
    with pytest.raises(RunnerBroken) as raised:
        pending.result()
    assert raised.value.__cause__ is BOOM


@pytest.mark.parametrize("tokens", [3, 1], ids=["prompt", "decode"])
def test_steps_are_given_and_their_results_taken_on_the_runner_s_own_device(device, monkeypatch, tokens) -> None:
    monkeypatch.setattr(torch.cuda, "device", device.use)
    device.become(torch.device("cuda", 3))
    device.step(tokens).result()
    assert device.seen == [3, 3]
    assert device.current == [0]


def test_so_is_the_warm_up(device, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", device.use)
    device.become(torch.device("cuda", 3))
    device.runner.warm_up()
    assert len(device.seen) > len(device.runner._decodes.sizes)
    assert set(device.seen) == {3}
