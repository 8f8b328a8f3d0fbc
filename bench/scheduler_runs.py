"""Engines on a fake runner, driven for what `bench.scheduler` reports."""

import gc
import random
import time
from dataclasses import dataclass

from bench.percentiles import Spread, spread
from bench.record import Row
from worker.app import COLLECT_EVERY
from worker.engine.batch import Batch, Sampled
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.fake_runner import FakeRunner
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.results import RequestTotals
from worker.models.token_table import TokenTable

BLOCK_SIZE = 16
CONTEXT = 4_096
VOCABULARY = TokenTable(tuple(b" word%d" % number for number in range(1_000)), eos_ids=frozenset({0}))
TENANTS = 20

STEP_US, TOKEN_US = 20_000, 1_000  # about what the demo model takes on two cores
PRESSED_REQUESTS, PRESSED_AT_ONCE = 400, 64
PRESSED_PROMPT, PRESSED_OUTPUT = (100, 300), (200, 600)

PREFIX_REQUESTS, PREFIX_TOKENS, SUFFIX_TOKENS = 20, 2_000, 60


@dataclass(slots=True, frozen=True)
class Overhead:
    running: int
    waiting: int
    step_ms: Spread  # scheduling, packing and processing of tokens; not the runner

    def row(self) -> Row:
        times = {f"step_{name}_ms": getattr(self.step_ms, name) for name in ("p50", "p95", "p99")}
        return {"running": self.running, "waiting": self.waiting, **times}


class _Timed:
    """A runner that measures how much time it took, real or virtual."""

    def __init__(self, *, blocks: int, step_us: int = 0, token_us: int = 0) -> None:
        self.spent_s = 0.0
        self.virtual_s = 0.0
        self._inner = FakeRunner(
            vocab_size=VOCABULARY.vocab_size,
            blocks_total=blocks + 1,
            block_size=BLOCK_SIZE,
            context_length=CONTEXT,
            ids=range(1, VOCABULARY.vocab_size),
            step_us=step_us,
            token_us=token_us,
            sleep=self._sleep,
        )
        self.vocab_size = VOCABULARY.vocab_size
        self.block_size = BLOCK_SIZE
        self.blocks_total = blocks + 1
        self.context_length = CONTEXT
        self.steps_ahead = 0

    def submit(self, batch: Batch) -> Sampled:
        start = time.perf_counter()
        sampled = self._inner.submit(batch)
        self.spent_s += time.perf_counter() - start
        return sampled

    def close(self) -> None:
        self._inner.close()

    def _sleep(self, seconds: float) -> None:
        self.virtual_s += seconds


def overhead(running: int, waiting: int, *, steps: int) -> Overhead:
    """The engine's own share of steps in which `running` sequences decode and `waiting` ones find no place."""
    prompt_tokens = 200
    blocks = running * -(-(prompt_tokens + 2 * steps) // BLOCK_SIZE)
    runner = _Timed(blocks=blocks)
    engine = _engine(runner, sequences_max=running, tokens_per_step=2_048)
    chance = random.Random(running)
    for number in range(running + waiting):
        # Of different lengths, so that sequences do not fill their blocks in the same step.
        _add(engine, number, _prompt(chance, prompt_tokens - number % BLOCK_SIZE), output=2 * steps)
    while engine.step().tokens != running:
        pass
    times_ms: list[float] = []
    gc.freeze()
    gc.set_threshold(*COLLECT_EVERY)  # garbage collection as in a worker
    for _ in range(steps):
        start, before_s = time.perf_counter(), runner.spent_s
        step = engine.step()
        engine.stats()
        took_s = time.perf_counter() - start
        assert (step.sequences, step.tokens) == (running, running)
        times_ms.append((took_s - (runner.spent_s - before_s)) * 1_000)
    found = spread(times_ms)
    assert found is not None
    return Overhead(running, waiting, found)


def prefix() -> Row:
    """Prompt tokens that were computed for requests with a common prefix, one after the other."""
    engine = _engine(_Timed(blocks=1_000), tokens_per_step=512)
    chance = random.Random("prefix")
    common = _prompt(chance, PREFIX_TOKENS)
    computed = cached = prompt_tokens = 0
    for number in range(PREFIX_REQUESTS):
        _add(engine, number, common + _prompt(chance, SUFFIX_TOKENS), output=8, tenant="one")
        totals, tokens = _finish(engine)
        prompt_tokens += sum(total.prompt_tokens for total in totals)
        cached += sum(total.cached_tokens for total in totals)
        # The last token of an answer is not computed.
        computed += tokens - sum(total.completion_tokens - 1 for total in totals)
    assert computed + cached == prompt_tokens
    return {
        "requests": PREFIX_REQUESTS,
        "shared_tokens": PREFIX_TOKENS,
        "prompt_tokens": prompt_tokens,
        "computed_tokens": computed,
        "saved_share": cached / prompt_tokens,
    }


def preemption(requests: int = PRESSED_REQUESTS) -> Row:
    """The same requests with room for all that run at one time, and with half of that: throughput, and tokens computed
    again.
    """
    needed = PRESSED_AT_ONCE * -(-(sum(PRESSED_PROMPT) + sum(PRESSED_OUTPUT)) // (2 * BLOCK_SIZE))  # on average
    free, tight = _press(requests, blocks=needed), _press(requests, blocks=needed // 2)
    return {
        "requests": requests,
        "at_once": PRESSED_AT_ONCE,
        "blocks_needed": needed,
        "blocks": needed // 2,
        "preemptions": tight.preemptions,
        "throughput_share": tight.tokens_per_s / free.tokens_per_s,
        "recompute_tax": tight.computed_per_token / free.computed_per_token - 1,
    }


@dataclass(slots=True, frozen=True)
class _Pressed:
    tokens_per_s: float  # virtual seconds
    computed_per_token: float  # tokens through the model per output token
    preemptions: int


def _press(requests: int, *, blocks: int) -> _Pressed:
    """As many requests as there are clients, each followed by the next, until all have been sent."""
    runner = _Timed(blocks=blocks, step_us=STEP_US, token_us=TOKEN_US)
    engine = _engine(runner, tokens_per_step=512)
    chance = random.Random("pressed")
    computed = generated = added = running = 0
    while added < requests:
        while running < PRESSED_AT_ONCE:
            _add(
                engine, added, _prompt(chance, chance.randint(*PRESSED_PROMPT)), output=chance.randint(*PRESSED_OUTPUT)
            )
            added += 1
            running += 1
        step = engine.step()
        computed += step.tokens
        generated += len(step.chunks)
        running -= len(step.done)
    return _Pressed(generated / runner.virtual_s, computed / generated, engine.stats().preemptions_total)


def _engine(runner: _Timed, *, tokens_per_step: int, sequences_max: int = 256) -> Engine:
    config = EngineConfig(
        block_size=BLOCK_SIZE,
        context_length=CONTEXT,
        tokens_per_step=tokens_per_step,
        sequences_max=sequences_max,
    )
    return Engine(runner, VOCABULARY, config)


def _prompt(chance: random.Random, tokens: int) -> list[int]:
    return chance.choices(range(1, VOCABULARY.vocab_size), k=tokens)


def _add(engine: Engine, number: int, prompt: list[int], *, output: int, tenant: str | None = None) -> None:
    tenant = tenant or f"t{number % TENANTS}"
    sampling = SamplingParams(max_tokens=output, temperature=0.0)
    request = EngineRequest(
        id=str(number), prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant=tenant, salt=tenant.encode()
    )
    engine.add(request)


def _finish(engine: Engine) -> tuple[list[RequestTotals], int]:
    """Run to the end. Returns each request's totals, and the tokens that went through the model."""
    totals: list[RequestTotals] = []
    tokens = 0
    while engine.has_work:
        step = engine.step()
        tokens += step.tokens
        totals += [done.totals for done in step.done]
    return totals, tokens
