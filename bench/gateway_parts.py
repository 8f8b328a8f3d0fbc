"""Processor time of a request's pure parts, each called alone in this process with the inputs of a real request.

Parts that need a server (the limiter, a publication) are measured where they run. The rest of a request is the HTTP
server, the framework and the event loop. Caches are warm here, so the sum is a lower bound.
"""

import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from bench.workload import Workload
from gateway.admission.tokenizer import PromptEncoder
from gateway.api import body, chat
from gateway.api.chat_shape import ChatShape
from gateway.api.shape import AnswerSpec
from gateway.dispatch.attempt import Attempt
from gateway.dispatch.inbox import Inbox
from shared import wire
from shared.settings import Secret
from worker import app
from worker.metrics import WorkerMetrics
from worker.settings import WorkerSettings

REPEATS = 9  # the fastest one counts
CALLS = 300
CHUNKS = 64  # chunks in a frame: one step of as many streams
READER_BYTES_MAX = 1 << 20
TEXT, IDS = " water", wire.pack_ids([1234])


class Part(msgspec.Struct, frozen=True):
    name: str
    us: float  # per request, or per chunk


async def measured(workload: Workload) -> list[Part]:
    """The parts of one request of `workload`, a chat; frames and events are per chunk."""
    data, endpoint = workload.body(0), chat.ENDPOINT
    generation = endpoint.parse(body.decode(data, endpoint.decoder))
    with ThreadPoolExecutor(1) as executor:
        encoder = PromptEncoder(_card(), executor)
        prompt = wire.pack_ids((await encoder.encode(generation))[0])
        encode_us, render_us = (
            _us(lambda: _run(encoder.encode(generation))),
            _us(lambda: encoder.render(generation.turns)),
        )
    shape = ChatShape(
        AnswerSpec(request="0" * 36, created_s=0, model="m", choices=1, logprobs=False, include_usage=True)
    )
    chunk = _chunk(0, 1)
    return [
        Part("decode and check the body", _us(lambda: endpoint.parse(body.decode(data, endpoint.decoder)))),
        Part("chat template", render_us),
        Part("tokenize", max(encode_us - render_us, 0.0)),
        Part("encode the job", _us(lambda: wire.encode(_job(0, prompt)))),
        Part("read a frame and sort it, for a chunk", _frames_us(prompt)),
        Part("write an event, for a chunk", _us(lambda: shape.events(chunk))),
    ]


def _us(call: Callable[[], object]) -> float:
    """Microseconds of processor time per call."""
    found: list[float] = []
    for _ in range(REPEATS):
        start_s = time.process_time()
        for _ in range(CALLS):
            call()
        found.append((time.process_time() - start_s) / CALLS * 1e6)
    return min(found)


def _run(work: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that never waits: short texts are encoded on the event loop."""
    try:
        work.send(None)
    except StopIteration:
        return
    raise AssertionError("it waited")


def _frames_us(prompt: bytes) -> float:
    inbox = Inbox()
    attempts = [Attempt(_job(number, prompt), "p", 0.0, reader_bytes_max=READER_BYTES_MAX) for number in range(CHUNKS)]
    for attempt in attempts:
        inbox.add(attempt)
    steps = (tuple(_chunk(number, seq) for number in range(CHUNKS)) for seq in range(1, REPEATS * CALLS + 1))
    frames = iter([wire.encode(wire.Frame(worker="w", items=chunks)) for chunks in steps])

    def read() -> None:
        inbox.on_frame(wire.decode(next(frames), wire.Frame), 0.0)
        for attempt in attempts:
            attempt.take()

    return _us(read) / CHUNKS


def _chunk(number: int, seq: int) -> wire.Chunk:
    return wire.Chunk(request=str(number), attempt=1, seq=seq, choice=0, ids=IDS, text=TEXT)


def _job(number: int, prompt: bytes) -> wire.Job:
    return wire.Job(
        request=str(number),
        attempt=1,
        gateway="g",
        tenant="t",
        key="k",
        model="m",
        card="c",
        tier=0,
        prompts=(prompt,),
        n=1,
        sampling=wire.Sampling(max_tokens=8),
        cache_salt=bytes(16),
        wait_ms=1_000,
        run_ms=1_000,
    )


def _card() -> wire.ModelCard:
    """The demo model's card."""
    settings = WorkerSettings(nats_url=Secret("unused"), runner="fake")
    card, _ = app.load(app.placed(settings), WorkerMetrics())
    return app.card_on_wire(card, pool="bench", tokens_max=card.context_length)
