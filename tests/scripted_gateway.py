"""A gateway over real HTTP whose tenants, limits and workers are scripted, for tests of the HTTP side alone."""

import asyncio
import contextlib
import io
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

import aiohttp
import msgspec

from gateway.admission.admission import Admission
from gateway.admission.limiter import Decision, Demand, Limit, Limiter, LimitState, Used
from gateway.admission.pricer import Pricer
from gateway.admission.served_models import ServedModels
from gateway.api.gate import Gate
from gateway.api.services import Services
from gateway.app import listening
from gateway.db import engine
from gateway.db.queries import TierBounds
from gateway.dispatch.report import FleetReport
from gateway.dispatch.terms import Terms
from gateway.errors import GatewayError, InvalidKey
from gateway.metrics import Metrics
from gateway.protocols import Dispatcher
from gateway.settings import GatewaySettings
from shared import wire
from shared.settings import Secret
from shared.trace import Off, Tracer
from tests.answers import Answer
from tests.services import free_port
from tests.tiny_model import MODEL, MODEL_ID, POOL, card

KEY = "fb-test-good"
ADMIN_KEY = "fb-test-admin"
AUTH = {"authorization": f"Bearer {KEY}"}
NO_DATABASE = "postgresql://nobody@127.0.0.1:1/nothing"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    tenant_id: uuid.UUID = uuid.UUID(int=1)
    key_id: uuid.UUID = uuid.UUID(int=2)
    public_id: str = "scripted"
    plan_id: uuid.UUID = uuid.UUID(int=3)
    tier: int = 0
    tier_bounds: TierBounds = TierBounds()
    scopes: frozenset[str] = frozenset({"inference"})
    models: frozenset[uuid.UUID] | None = None
    networks: tuple[IPv4Network | IPv6Network, ...] | None = None
    ignore_unknown_fields: bool = False
    limits: tuple[Limit, ...] = ()


class NoPrices:
    """Implements `Pricer` for tests of everything but money."""

    def ceiling_micro(self, model_id: uuid.UUID, plan_id: uuid.UUID, prompt_tokens: int, output_tokens: int) -> int:
        return 0


class ScriptedPrincipals:
    def __init__(self) -> None:
        self.callers = {KEY: Caller(), ADMIN_KEY: Caller(scopes=frozenset({"admin"}))}

    async def resolve(self, authorization_values: list[str]) -> Caller:
        value = authorization_values[0] if len(authorization_values) == 1 else ""
        scheme, _, key = value.partition(" ")
        if scheme.lower() != "bearer" or key.strip() not in self.callers:
            raise InvalidKey("Incorrect API key provided.")
        return self.callers[key.strip()]


class ScriptedLimiter:
    """Admits everything unless scripted otherwise; records what was reserved and settled."""

    def __init__(self) -> None:
        self.decision = Decision(
            states=(
                LimitState(metric="requests", limit=60, remaining=59, reset_ms=1_000),
                LimitState(metric="tokens", limit=9_000, remaining=8_000, reset_ms=6_500),
                LimitState(metric="tokens", limit=20_000, remaining=8_500, reset_ms=90_000),
            ),
        )
        self.demands: list[Demand] = []
        self.running: list[uuid.UUID] = []
        self.settled: list[tuple[uuid.UUID, int]] = []
        self.hold: asyncio.Event | None = None

    def refuses(self, limits: tuple[Limit, ...], tokens_max: int) -> Decision | None:
        return None

    async def admit(self, demand: Demand) -> Decision:
        self.demands.append(demand)
        if self.hold is not None:
            await self.hold.wait()
        return self.decision

    def started(self, request_id: uuid.UUID) -> None:
        self.running.append(request_id)

    async def settle(self, request_id: uuid.UUID, used: Used) -> None:
        self.settled.append((request_id, used.tokens))


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    name: str = MODEL
    digest: str = "digest"
    pool: str = POOL


class ScriptedFleet:
    def __init__(self) -> None:
        self.ready = [Ready()]

    def models(self) -> list[Ready]:
        return self.ready

    def find(self, name: str) -> Ready | None:
        return next((model for model in self.ready if model.name == name), None)


class Play:
    """What a worker does with one job: scripted by the test, read by the gateway."""

    def __init__(self, job: wire.Job) -> None:
        self.job = job
        self.end: wire.End | None = None
        self.prompt_tokens = job.prompt_tokens
        self.completion_tokens = 0
        self.cancelled = False
        self.leaving: Coroutine[None, None, None] | None = None
        self._seq = 0
        self._queue: asyncio.Queue[list[wire.Chunk] | GatewayError | None] = asyncio.Queue()

    def chunk(
        self, text: str, *, choice: int = 0, ids: int = 1, finish: wire.Finish | None = None, logprobs: bool = False
    ) -> wire.Chunk:
        self._seq += 1
        self.completion_tokens += ids
        entries = tuple(
            wire.TokenLogprob(
                id=7, logprob=-0.5, text=text.encode(), top=((7, -0.5, text.encode()), (8, -1e30, b"\xff"))
            )
            for _ in range(ids)
        )
        return wire.Chunk(
            request=self.job.request,
            attempt=1,
            seq=self._seq,
            choice=choice,
            ids=wire.pack_ids([7] * ids),
            text=text,
            finish=finish,
            logprobs=entries if logprobs else None,
        )

    def send(self, *chunks: wire.Chunk) -> None:
        self._queue.put_nowait(list(chunks))

    def fail(self, error: GatewayError) -> None:
        self._queue.put_nowait(error)

    def finish(self, outcome: wire.Outcome = "finished", *, cached: int = 0) -> None:
        self.end = wire.End(
            request=self.job.request,
            attempt=1,
            seq=self._seq + 1,
            outcome=outcome,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=cached,
            completion_tokens=self.completion_tokens,
        )
        self._queue.put_nowait(None)

    async def next(self, chunks_min: int = 1) -> list[wire.Chunk]:
        assert chunks_min >= 1
        item = None if self.end and self._queue.empty() else await self._queue.get()
        if isinstance(item, GatewayError):
            raise item
        return item or []

    async def leave(self) -> None:
        if self.leaving is not None:
            leaving, self.leaving = self.leaving, None
            await leaving


Script = Callable[[Play], Awaitable[None]]


async def speak(play: Play) -> None:
    """The default script: every choice says `Hello world` in two chunks and stops."""
    choices = range(play.job.choices)
    asked = play.job.sampling.logprobs is not None
    play.send(*(play.chunk("Hello", choice=choice, logprobs=asked) for choice in choices))
    play.send(*(play.chunk(" world", choice=choice, finish="stop", logprobs=asked) for choice in choices))
    play.finish()


class ScriptedDispatcher:
    def __init__(self) -> None:
        self.gateway_id = "gw-test"
        self.fleet = ScriptedFleet()
        self.script: Script = speak
        self.refuse: GatewayError | None = None
        self.overloaded: GatewayError | None = None
        self.accept: asyncio.Event | None = None
        self.plays: list[Play] = []
        self.terms: list[Terms] = []
        self.fleet_report = FleetReport(workers=(), queues=(), pools_failing=())
        self.open_now = 0

    def report(self) -> FleetReport:
        return self.fleet_report

    def check_load(self, job: wire.Job, pool: str, terms: Terms) -> None:
        assert pool == POOL
        if self.overloaded is not None:
            raise self.overloaded

    async def open(self, job: wire.Job, *, pool: str, terms: Terms, run_s: float) -> Play:
        assert pool == POOL
        self.terms.append(terms)
        assert run_s > 0
        play = Play(job)
        self.plays.append(play)
        self.open_now += 1
        try:
            if self.accept is not None:
                await self.accept.wait()
        except BaseException:
            await self._leave(play, None)
            raise
        if self.refuse is not None:
            await self._leave(play, None)
            raise self.refuse
        play.leaving = self._leave(play, asyncio.create_task(_run(self.script, play)))
        return play

    async def _leave(self, play: Play, script: "asyncio.Task[None] | None") -> None:
        self.open_now -= 1
        play.cancelled = play.end is None
        if script is not None:
            script.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await script


async def _run(script: Script, play: Play) -> None:
    await script(play)


@dataclass
class ScriptedGateway:
    base: str
    port: int
    services: Services
    principals: ScriptedPrincipals
    limiter: ScriptedLimiter
    dispatcher: ScriptedDispatcher
    http: aiohttp.ClientSession
    server: "asyncio.Task[None]"

    @property
    def play(self) -> Play:
        return self.dispatcher.plays[-1]

    @property
    def jobs(self) -> list[wire.Job]:
        return [play.job for play in self.dispatcher.plays]

    async def check_settled(self) -> None:
        """Assert that nothing is open, and that every job was settled once."""
        await eventually(lambda: self.services.gate.taken == 0)
        assert self.dispatcher.open_now == 0
        settled = [str(request) for request, _ in self.limiter.settled]
        assert len(settled) == len(set(settled))
        assert {job.request for job in self.jobs} <= set(settled)

    async def post(self, path: str, body: object, headers: dict[str, str] = AUTH) -> "Answer":
        data = io.BytesIO(body if isinstance(body, bytes) else msgspec.json.encode(body))
        sent = {"content-type": "application/json", **headers}
        async with self.http.post(self.base + path, data=data, headers=sent) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    async def get(self, path: str, headers: dict[str, str] = AUTH) -> "Answer":
        async with self.http.get(self.base + path, headers=headers) as response:
            return Answer(response.status, response.headers.copy(), await response.read())

    def outcomes(self) -> dict[str, float]:
        """Requests counted so far, by outcome."""
        counted: dict[str, float] = {}
        for metric in self.services.metrics.requests.collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    label = sample.labels["outcome"]
                    counted[label] = counted.get(label, 0) + sample.value
        return counted


@asynccontextmanager
async def scripted_services(
    principals: ScriptedPrincipals,
    limiter: Limiter,
    dispatcher: Dispatcher,
    *,
    model: wire.ModelCard | None = None,
    pricer: Pricer | None = None,
    tracer: Tracer | None = None,
    database_url: str = NO_DATABASE,
    **settings: object,
) -> AsyncGenerator[Services]:
    """The services under a gateway's HTTP side."""
    loaded = GatewaySettings(postgres_url=Secret(""), nats_url=Secret(""), **settings)
    database = engine.create(database_url, connections_max=2)

    async def register(_: wire.ModelCard, __: str) -> str:
        return str(MODEL_ID)

    with executor() as threads:
        served_models = ServedModels(register, threads)
        await served_models.add("digest", model or card())
        metrics = Metrics()
        admission = Admission(
            served_models,
            dispatcher.fleet,
            limiter,
            pricer or NoPrices(),
            metrics,
            gateway_id=dispatcher.gateway_id,
            default_output=loaded.default_output,
            run_s=loaded.run_s,
        )
        yield Services(
            settings=loaded,
            principals=principals,
            database=database,
            served_models=served_models,
            admission=admission,
            dispatcher=dispatcher,
            gate=Gate(loaded.requests_open_max),
            metrics=metrics,
            tracer=tracer or Off(),
        )
    await database.dispose()


@asynccontextmanager
async def scripted_gateway(
    *,
    model: wire.ModelCard | None = None,
    real_limiter: Limiter | None = None,
    pricer: Pricer | None = None,
    **settings: object,
) -> AsyncGenerator[ScriptedGateway]:
    """With `real_limiter`, the scripted limiter is not used. Without `pricer`, everything is free."""
    principals, limiter, dispatcher = ScriptedPrincipals(), ScriptedLimiter(), ScriptedDispatcher()
    used = real_limiter or limiter
    async with scripted_services(principals, used, dispatcher, model=model, pricer=pricer, **settings) as services:
        port = free_port()
        async with listening(services, host="127.0.0.1", port=port) as server, aiohttp.ClientSession() as http:
            yield ScriptedGateway(
                f"http://127.0.0.1:{port}", port, services, principals, limiter, dispatcher, http, server
            )


@contextlib.contextmanager
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as threads:
        yield threads


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait, bounded, until `condition` holds."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)
