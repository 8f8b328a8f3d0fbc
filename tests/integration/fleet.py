"""A fleet inside the test's event loop: real NATS, engine, link and dispatcher; only the model is a fake.

What is not under test is waited for with patience: on a machine that stands still for seconds, nobody may give up what
would have come. A test of a limit sets it by itself.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import nats

from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.limits import DispatchLimits
from gateway.dispatch.stream import RequestStream
from gateway.dispatch.terms import Terms
from shared import ids, subjects, wire
from shared.bus import BusUnavailable
from shared.clock import Clock
from shared.trace import Tracer
from worker.engine.config import EngineConfig
from worker.engine.engine import Engine
from worker.engine.fake_runner import FakeRunner
from worker.engine.service import Service
from worker.link.limits import LinkLimits
from worker.link.link import Link
from worker.models.token_table import TokenTable

PATIENCE_S = 60.0
VOCAB = TokenTable(tuple(bytes([65 + i % 26]) for i in range(64)), eos_ids=frozenset({0}))
CONTEXT = 4096


def card(name: str = "toy", pool: str = "default") -> wire.ModelCard:
    return wire.ModelCard(
        name=name,
        pool=pool,
        context_length=CONTEXT,
        vocab_size=64,
        tokenizer=b"{}",
        chat_template=None,
        bos_id=None,
        eos_ids=(0,),
        add_bos=False,
        special_ids=(),
        request_tokens_max=CONTEXT,
    )


TOY = card()


def toy_engine(
    *,
    step_us: int = 2_000,
    blocks: int = 512,
    sequences_max: int = 64,
    oracle: bool = False,
    sleep: Callable[[float], None] = time.sleep,
    service: Service | None = None,
    vocabulary: TokenTable = VOCAB,
) -> tuple[Engine, EngineConfig]:
    runner = FakeRunner(
        vocab_size=vocabulary.vocab_size,
        blocks_total=blocks,
        block_size=16,
        context_length=CONTEXT,
        ids=range(1, 64),
        step_us=step_us,
        oracle=oracle,
        sleep=sleep,
    )
    config = EngineConfig(block_size=16, context_length=CONTEXT, sequences_max=sequences_max)
    return Engine(runner, vocabulary, config, service), config


@dataclass
class Worker:
    """A worker that can be stopped in an orderly way, or cut off as if its process had been killed."""

    link: Link
    stop: asyncio.Event
    task: asyncio.Task[None]
    service: Service

    async def drain(self) -> None:
        self.stop.set()
        await self.task

    async def kill(self) -> None:
        """Nothing more of it reaches NATS: no last frame and no bill."""

        def dead() -> NoReturn:
            raise BusUnavailable("killed")

        self.link.bus._connected_client = dead
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@dataclass
class Fleet:
    url: str
    limits: LinkLimits = field(default_factory=LinkLimits)
    workers: list[Worker] = field(default_factory=list)

    def start(
        self,
        *,
        card: wire.ModelCard = TOY,
        drain_s: float = 5.0,
        tiers: tuple[int, ...] = (0, 1, 2),
        floor_share: float = 0.05,
        tracer: Tracer | None = None,
        **engine: Any,
    ) -> Worker:
        service = Service(floor_share=floor_share)
        toy, config = toy_engine(**engine, service=service)
        stop = asyncio.Event()
        link = Link(
            nats_url=self.url,
            worker=ids.process_id("wk"),
            incarnation=ids.process_id("in"),
            engine=toy,
            config=config,
            card=card,
            tiers=tiers,
            service=service,
            limits=self.limits,
            tracer=tracer,
        )
        worker = Worker(link, stop, asyncio.create_task(link.run(stop, drain_s=drain_s)), service)
        self.workers.append(worker)
        return worker


@contextlib.asynccontextmanager
async def fleet(url: str, **limits: float) -> AsyncIterator[Fleet]:
    members = Fleet(url, LinkLimits(**{"bill_timeout_s": PATIENCE_S, "ensure_s": PATIENCE_S, **limits}))
    try:
        yield members
    finally:
        for worker in members.workers:
            worker.stop.set()
        await asyncio.gather(*(worker.task for worker in members.workers), return_exceptions=True)


@contextlib.asynccontextmanager
async def gateway(url: str, *, clock: Clock | None = None, **limits: float) -> AsyncIterator[Dispatcher]:
    patient = dict.fromkeys(("no_worker_s", "nats_wait_s", "nats_outage_s", "leave_wait_s"), PATIENCE_S)
    patient |= {"unseen_s": 20.0, "repeat_s": 20.0}
    async with Dispatcher(url, limits=DispatchLimits(**{**patient, **limits}), clock=clock) as dispatcher:
        yield dispatcher


async def until(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def ready(dispatcher: Dispatcher, *, workers: int = 1) -> None:
    await until(lambda: len([beat for beat in dispatcher.fleet.workers() if beat.ready]) >= workers)
    await until(dispatcher.fleet.models)


def tokens(chunks: list[wire.Chunk]) -> list[int]:
    return [token for chunk in chunks for token in wire.unpack_ids(chunk.ids)]


def job(
    dispatcher: Dispatcher,
    *,
    model: str = "toy",
    tenant: str = "tenant",
    tier: int = 0,
    prompt: int = 5,
    max_tokens: int = 10,
    n: int = 1,
    **sampling: object,
) -> wire.Job:
    info = dispatcher.fleet.find(model)
    return wire.Job(
        request=str(ids.uuid7()),
        attempt=1,
        gateway=dispatcher.gateway_id,
        tenant=tenant,
        key="key",
        model=str(uuid.uuid4()),
        card=info.digest if info else "0" * 64,
        tier=tier,
        prompts=(wire.pack_ids(list(range(1, prompt + 1)) if prompt < 64 else [1] * prompt),),
        n=n,
        sampling=wire.Sampling(max_tokens=max_tokens, **sampling),
        cache_salt=tenant.encode(),
        wait_ms=60_000,
        run_ms=60_000,
    )


@contextlib.asynccontextmanager
async def opened(
    dispatcher: Dispatcher, wanted: wire.Job, *, wait_s: float = PATIENCE_S, run_s: float = 60.0, **terms: float | None
) -> AsyncGenerator[RequestStream]:
    stream = await dispatcher.open(wanted, pool="default", terms=Terms(wait_s=wait_s, **terms), run_s=run_s)
    try:
        yield stream
    finally:
        await stream.leave()


async def published(dispatcher: Dispatcher, count: int, *, tier: int = 0) -> None:
    """Until so many of the tier's open jobs have been put into their queue."""

    def put() -> int:
        attempts = dispatcher._inbox.attempts()
        return sum(attempt.sequence is not None for attempt in attempts if attempt.job.tier == tier)

    await until(lambda: put() >= count)


async def read(stream: RequestStream) -> list[wire.Chunk]:
    found: list[wire.Chunk] = []
    while chunks := await stream.next():
        found += chunks
    return found


async def usage(url: str, *, expected: int, timeout_s: float = PATIENCE_S) -> list[wire.UsageEvent]:
    """Every usage event in the stream: waits until there are `expected`, and then a moment for any surplus ones."""
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        async with asyncio.timeout(timeout_s):
            while (await jetstream.stream_info(subjects.USAGE_STREAM)).state.messages < expected:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        state = (await jetstream.stream_info(subjects.USAGE_STREAM)).state
        events = []
        for sequence in range(state.first_seq, state.last_seq + 1):
            message = await jetstream.get_msg(subjects.USAGE_STREAM, sequence)
            events.append(wire.decode(message.data, wire.UsageEvent))
        return events
    finally:
        await client.close()
