"""The time to the first token of the fake engine, called in process: the baseline without gateway, NATS and link."""

import time

from bench.percentiles import Spread, spread
from shared.settings import Secret
from worker import app
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.request import EngineRequest, SamplingParams
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings

PROMPT_ID = 100  # any token: the fake runner ignores it


def in_process(*, prompt_tokens: int, output_tokens: int, requests: int) -> Spread:
    """Seconds from `add` to the first chunk, one request at a time, on an engine as a worker's."""
    engine = _engine()
    found: list[float] = []
    for number in range(requests):
        request = EngineRequest(
            id=str(number),
            prompts=([PROMPT_ID] * prompt_tokens,),
            n=1,
            sampling=SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True),
            tier=0,
            tenant="bench",
            salt=b"",
        )
        start_s = time.perf_counter()
        engine.add(request)
        while not engine.step().chunks:
            pass
        found.append(time.perf_counter() - start_s)
        while engine.has_work:
            engine.step()
    result = spread(found)
    assert result is not None
    return result


def _engine() -> Engine:
    settings = WorkerSettings(nats_url=Secret("unused"), runner="fake", fake_step_us=0, fake_token_us=0)
    card, runner = app.load(app.placed(settings), WorkerMetrics())
    config = EngineConfig(
        block_size=settings.block_size,
        context_length=card.context_length,
        tokens_per_step=settings.step_tokens,
        sequences_max=settings.sequences_max,
    )
    return Engine(runner, card.vocabulary, config)
