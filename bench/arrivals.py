"""Measures how even streams stay while prompts arrive, on a fake runner in virtual time.

A step takes roughly the virtual time that its work costs the demo model on two cores with AVX2. So the result shows
what the scheduler does with the cost of chunks, and is the same on any machine; `bench.stack` measures the real thing.
"""

import random
from itertools import pairwise

from bench.percentiles import spread
from bench.record import Row
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.fake_runner import FakeRunner
from worker.engine.pace import Pace, Work
from worker.engine.request import EngineRequest, SamplingParams
from worker.models.token_table import TokenTable

PROMPT_TOKENS, OUTPUT_TOKENS = 200, 128
MACHINE = Pace(2.0, costs_s=[0.03, 0.0037, 0.0024, 1e-6, 1e-5])
NOISE = 0.1
VOCABULARY = TokenTable(tuple(b" word%d" % number for number in range(1_000)), eos_ids=frozenset({0}))
BLOCK_SIZE, BLOCKS, CONTEXT = 16, 4_000, 4_096


def arrivals(*, rate: float, seconds: float, pace: float | None, beside: int = 512) -> Row:
    """Poisson arrivals at `rate` per second for `seconds` virtual seconds: gaps between tokens, and times to the first
    one.
    """
    chance = random.Random(rate)
    waiting = _times(chance, rate, seconds)
    arrived_at, told_at = dict(enumerate(waiting)), dict[str, list[float]]()
    engine = _engine(pace, beside)
    now, added = 0.0, 0
    while added < len(waiting) or engine.has_work:
        while added < len(waiting) and waiting[added] <= now:
            engine.add(_request(added, chance))
            added += 1
        if not engine.has_work:
            now = waiting[added]
            continue
        step = engine.step()
        took_s = _price_s(step.work, chance)
        engine.record_time(step, took_s)
        now += took_s
        for chunk in step.chunks:
            told_at.setdefault(chunk.request, []).append(now)
    gaps = spread([after - before for times in told_at.values() for before, after in pairwise(times)])
    first = spread([times[0] - arrived_at[int(name)] for name, times in told_at.items()])
    assert gaps is not None
    assert first is not None
    return {
        "rate": rate,
        "pace": pace,
        "itl_p50_ms": gaps.p50 * 1_000,
        "itl_p99_ms": gaps.p99 * 1_000,
        "itl_p99_over_p50": gaps.p99 / gaps.p50,
        "ttft_p50_ms": first.p50 * 1_000,
        "ttft_p95_ms": first.p95 * 1_000,
    }


def _times(chance: random.Random, rate: float, seconds: float) -> list[float]:
    times = [chance.expovariate(rate)]
    while times[-1] < seconds:
        times.append(times[-1] + chance.expovariate(rate))
    return times


def _price_s(work: Work, chance: random.Random) -> float:
    return MACHINE.expected_s(work) * chance.uniform(1 - NOISE, 1 + NOISE)


def _engine(pace: float | None, beside: int) -> Engine:
    runner = FakeRunner(
        vocab_size=VOCABULARY.vocab_size,
        blocks_total=BLOCKS,
        block_size=BLOCK_SIZE,
        context_length=CONTEXT,
        ids=range(1, VOCABULARY.vocab_size),
    )
    config = EngineConfig(block_size=BLOCK_SIZE, context_length=CONTEXT, tokens_beside_decodes=beside, pace=pace)
    return Engine(runner, VOCABULARY, config)


def _request(number: int, chance: random.Random) -> EngineRequest:
    prompt = chance.choices(range(1, VOCABULARY.vocab_size), k=PROMPT_TOKENS)
    sampling = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0.0)
    name = str(number)
    return EngineRequest(id=name, prompts=(prompt,), n=1, sampling=sampling, tier=0, tenant="bench", salt=name.encode())
