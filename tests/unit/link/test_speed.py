"""What a worker measures of itself."""

import pytest

from tests.integration.fleet import toy_engine
from worker.engine.results import RequestTotals
from worker.link.load import worker_load
from worker.link.speed import Speed


def totals(output: int, *, prompt: int = 10, cached: int = 0) -> RequestTotals:
    return RequestTotals(prompt_tokens=prompt, cached_tokens=cached, completion_tokens=output)


def test_what_was_never_measured_is_zero() -> None:
    speed = Speed(10)
    speed.stepped(0.0, tokens=5, sampled=1)
    speed.stepped(0.1, tokens=0, sampled=0)
    measured = (speed.prompt_tokens_per_s, speed.step_s, speed.output_tokens_mean, speed.cached_share)
    assert measured == (0.0, 0.0, 0.0, 0.0)


def test_steps_that_only_decode_say_nothing_of_prompts() -> None:
    speed = Speed(10)
    speed.stepped(0.5, tokens=101, sampled=1)
    for _ in range(100):
        speed.stepped(0.1, tokens=8, sampled=8)
    assert speed.prompt_tokens_per_s == pytest.approx(200)
    assert speed.step_s == pytest.approx(0.1, rel=0.01)


def test_steps_with_a_few_tokens_of_prompts_say_nothing_of_them() -> None:
    speed = Speed(10)
    speed.stepped(0.5, tokens=10, sampled=1)
    assert speed.prompt_tokens_per_s == 0.0
    speed.stepped(0.5, tokens=11, sampled=1)
    assert speed.prompt_tokens_per_s == pytest.approx(20)


def test_old_experience_fades() -> None:
    speed = Speed(10)
    for _ in range(100):
        speed.stepped(1.0, tokens=11, sampled=1)
        speed.finished(totals(100, cached=10), sequences=1)
    for _ in range(400):
        speed.stepped(0.1, tokens=101, sampled=1)
        speed.finished(totals(20), sequences=2)
    assert speed.prompt_tokens_per_s == pytest.approx(1_000, rel=0.02)
    assert speed.output_tokens_mean == pytest.approx(10, rel=0.02)
    assert speed.cached_share == pytest.approx(0, abs=0.001)


def test_a_beat_tells_what_is_free_above_the_watermark() -> None:
    engine, config = toy_engine(blocks=101)
    load = worker_load(engine.stats(), config, Speed(10), prompt_tokens_left=7, floor_share=0.05)
    assert (load.places, load.tokens_free, load.tokens_held) == (config.sequences_max, 95 * 16, 0)
    assert (load.prompt_tokens_left, load.floor_share, load.tiers) == (7, 0.05, ())
