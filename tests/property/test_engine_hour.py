"""An hour of random traffic on a virtual clock: every block is returned, and nothing accumulates."""

import gc
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from types import FunctionType, ModuleType

from tests.unit.engine.builders import ORDINARY, VOCABULARY, assert_idle, make_request
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.fake_runner import FakeRunner

HOUR_S = 3_600.0
PERIODS = 6  # after each, the engine finishes its work and is checked
STEP_US, TOKEN_US = 300_000, 4_000
REQUESTS_PER_S = 0.5
BLOCKS = 100
GROWTH_BYTES_MAX = 16_384  # a period: tenants that came once are remembered for a while, 100 bytes or two of each


@dataclass
class Clock:
    now_s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class Traffic:
    """Clients that come at random, begin alike, are of any tenant and tier, and sometimes hang up."""

    engine: Engine
    clock: Clock
    chance: random.Random = field(default_factory=lambda: random.Random(11))
    asked: int = 0
    ended: Counter[str] = field(default_factory=Counter)

    def run_until(self, end_s: float) -> None:
        due_s = self.clock.now_s
        while self.clock.now_s < end_s or self.engine.has_work:
            while due_s <= self.clock.now_s < end_s:
                self.ask()
                due_s += self.chance.expovariate(REQUESTS_PER_S)
            if not self.engine.has_work:
                self.clock.now_s = min(due_s, end_s)
                continue
            for done in self.engine.step().done:
                self.ended[done.error or "done"] += 1
            if self.chance.random() < 0.02 and self.engine.abort(f"r{self.asked - self.chance.randint(1, 10)}"):
                self.ended["aborted"] += 1

    def ask(self) -> None:
        chance = self.chance
        family = chance.randrange(5)
        prompt = [2 + (family * i) % 90 for i in range(chance.randrange(40))] + [chance.randrange(2, 97)]
        self.engine.add(
            make_request(
                f"r{self.asked}",
                prompt,
                n=chance.choice([1, 1, 1, 3]),
                max_tokens=chance.randint(1, 60),
                tier=chance.randrange(3),
                tenant=f"t{chance.randrange(8)}" if chance.random() < 0.9 else f"once{self.asked}",
                stop=chance.choice([(), ("ab",)]),
            )
        )
        self.asked += 1


def alive() -> list[object]:
    """All objects of engines."""
    gc.collect()
    return [it for it in gc.get_objects() if str(type(it).__module__).startswith("worker.engine")]


def size_bytes(engine: Engine) -> int:
    """Of all that the engine reaches, but for code."""
    seen: dict[int, object] = {}
    todo: list[object] = [engine]
    while todo:
        it = todo.pop()
        if id(it) not in seen and not isinstance(it, type | ModuleType | FunctionType):
            seen[id(it)] = it
            todo += gc.get_referents(it)
    return sum(map(sys.getsizeof, seen.values()))


def test_an_hour_of_traffic_leaves_every_block_free_and_memory_flat():
    of_others = {id(it): it for it in alive()}  # what earlier tests have left is held, so that no id comes again
    clock = Clock()
    runner = FakeRunner(
        vocab_size=VOCABULARY.vocab_size,
        blocks_total=BLOCKS + 1,
        block_size=4,
        context_length=128,
        ids=ORDINARY,
        step_us=STEP_US,
        token_us=TOKEN_US,
        oracle=True,
        sleep=clock.sleep,
    )
    config = EngineConfig(block_size=4, context_length=128, tokens_per_step=64, sequences_max=16)
    traffic = Traffic(Engine(runner, VOCABULARY, config), clock)
    left: list[Counter[str]] = []
    sizes: list[int] = []
    for period in range(1, PERIODS + 1):
        traffic.run_until(HOUR_S * period / PERIODS)
        assert_idle(traffic.engine)
        assert traffic.engine.stats().cached_blocks <= BLOCKS
        left.append(Counter(type(it).__name__ for it in alive() if id(it) not in of_others))
        sizes.append(size_bytes(traffic.engine))
    assert max(after - before for before, after in pairwise(sizes[1:])) < GROWTH_BYTES_MAX, sizes
    assert left == left[:1] * PERIODS
    assert not left[0].keys() & {"Sequence", "Chain", "LiveRequest", "Detokenizer", "ChoiceChunk"}
    stats = traffic.engine.stats()
    assert traffic.ended.total() == traffic.asked > 1_500
    assert traffic.ended["aborted"] > 20
    assert min(stats.preemptions_total, stats.prefix_hits_tokens_total) > 100
