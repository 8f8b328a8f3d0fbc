"""One request, one trace: over real HTTP and NATS, through a real engine, as a collector sees it and as the logs do."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import aiohttp
import pytest
from structlog.testing import capture_logs

from gateway.admission.limiter import Decision, LimitState
from gateway.app import listening
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.limits import DispatchLimits
from shared.trace import Tracer, tracing
from tests.collector import Collector, ExportedSpan, collecting
from tests.integration.fleet import Worker, fleet, ready
from tests.scripted_gateway import AUTH, KEY, Caller, ScriptedLimiter, ScriptedPrincipals, eventually, scripted_services
from tests.services import NatsServer, free_port
from tests.tiny_model import MODEL, card, chat_prompt_tokens
from worker.models.token_table import TokenTable

CHAT = "/v1/chat/completions"
ASK = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 12}
PROMPT = chat_prompt_tokens("hi")
VOCABULARY = TokenTable(tuple(bytes([65 + i % 26]) for i in range(300)), eos_ids=frozenset({0}))
SERVER, CLIENT, PRODUCER, CONSUMER, INTERNAL = 2, 3, 4, 5, 1
CALL, INFERENCE = f"POST {CHAT}", f"chat {MODEL}"
PUBLISH, PROCESS = "publish JOBS_default_0", "process JOBS_default_0"
WORKERS = {PROCESS, "engine.wait", "engine.prefill", "engine.decode"}
WHOLE = {CALL, "admission", INFERENCE, PUBLISH, "queue", *WORKERS}


@dataclass
class Traced:
    """A gateway and a worker that export, what they log, and who collects."""

    collector: Collector
    base: str
    http: aiohttp.ClientSession
    limiter: ScriptedLimiter
    principals: ScriptedPrincipals
    dispatcher: Dispatcher
    worker: Worker
    steps: threading.Semaphore  # that the engine may do
    exporting: ExitStack
    logs: list[dict] = field(default_factory=list)

    async def ask(self, body: dict | bytes, **headers: str) -> aiohttp.ClientResponse:
        sent = {"json": body} if isinstance(body, dict) else {"data": body}
        async with self.http.post(self.base + CHAT, headers={**AUTH, **headers}, **sent) as response:
            await response.read()
            return response

    async def traces(self, *traces: str, worker: bool = True) -> list[dict[str, ExportedSpan]]:
        """All spans of each trace, once all who worked for it have ended and told it. Nothing is told afterwards."""
        for trace in traces:
            await self.logged(trace, "request.finished", *(["attempt.ended"] if worker else []))
        self.exporting.close()
        return [self.collector.of(trace) for trace in traces]

    async def logged(self, trace: str, *events: str) -> list[dict]:
        def lines() -> list[dict]:
            return [line for line in self.logs if line.get("trace") == trace]

        await eventually(lambda: {line["event"] for line in lines()} >= set(events))
        return lines()


@pytest.fixture
def exporting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, Callable[[str], Tracer], ExitStack]]:
    monkeypatch.setattr("shared.otlp.FLUSH_S", 60)  # however slow the machine is
    with collecting() as collector, ExitStack() as stack:
        for name, value in collector.environ.items():
            monkeypatch.setenv(name, value)
        yield collector, lambda name: stack.enter_context(tracing(os.environ, service=name, instance="1")), stack


@pytest.fixture
async def traced(
    nats_server: NatsServer, exporting: tuple[Collector, Callable[[str], Tracer], ExitStack]
) -> AsyncIterator[Traced]:
    collector, tracer, stack = exporting
    port, principals, limiter, model = free_port(), ScriptedPrincipals(), ScriptedLimiter(), card()
    steps, ours = threading.Semaphore(10_000), tracer("gateway")
    with capture_logs() as logs:
        async with (
            fleet(nats_server.url) as workers,
            Dispatcher(nats_server.url, tracer=ours, limits=DispatchLimits(leave_wait_s=60)) as dispatcher,
            scripted_services(principals, limiter, dispatcher, model=model, tracer=ours) as services,
            listening(services, host="127.0.0.1", port=port),
            aiohttp.ClientSession() as http,
        ):

            def pause(_: float) -> None:
                steps.acquire(timeout=60)

            worker = workers.start(card=model, tracer=tracer("worker"), vocabulary=VOCABULARY, sleep=pause)
            await ready(dispatcher)
            found = dispatcher.fleet.find(MODEL)
            assert found is not None
            await services.served_models.add(found.digest, model)
            base = f"http://127.0.0.1:{port}"
            yield Traced(collector, base, http, limiter, principals, dispatcher, worker, steps, stack, logs)
            steps.release(10_000)
            await eventually(lambda: services.gate.taken == 0)


def parents(spans: dict[str, ExportedSpan]) -> dict[str, str]:
    """Of each span, the name of the one that it is a part of."""
    names = {span.span: name for name, span in spans.items()}
    return {name: names.get(span.parent, span.parent) for name, span in spans.items()}


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answered_request_is_one_connected_trace(traced: Traced, stream: bool) -> None:
    response = await traced.ask({**ASK, "stream": stream})
    assert response.status == 200
    trace = response.headers["x-trace-id"]
    lines = await traced.logged(trace, "request.finished", "attempt.ended")
    assert {line["request"] for line in lines} == {response.headers["x-request-id"]}
    [spans] = await traced.traces(trace)
    assert spans.keys() == WHOLE
    assert parents(spans) == {
        CALL: "",
        "admission": CALL,
        INFERENCE: CALL,
        PUBLISH: INFERENCE,
        "queue": INFERENCE,
        PROCESS: INFERENCE,
        "engine.wait": PROCESS,
        "engine.prefill": PROCESS,
        "engine.decode": PROCESS,
    }
    first = spans[CALL]
    assert all(first.start_ns <= span.start_ns <= span.end_ns for span in spans.values())
    assert all(span.end_ns <= first.end_ns for span in spans.values() if span.service == first.service)
    assert not any(span.failed for span in spans.values())
    assert {name for name in WHOLE if spans[name].service == "worker"} == WORKERS
    kinds = {CALL: SERVER, INFERENCE: CLIENT, PUBLISH: PRODUCER, PROCESS: CONSUMER}
    assert {name: span.kind for name, span in spans.items()} == dict.fromkeys(WHOLE, INTERNAL) | kinds


async def test_spans_say_what_was_asked_and_what_it_took(traced: Traced) -> None:
    response = await traced.ask({**ASK, "stream": True, "n": 2})
    [spans] = await traced.traces(response.headers["x-trace-id"])
    request = response.headers["x-request-id"]
    call = spans[CALL].attributes
    assert (call["http.request.method"], call["http.route"], call["http.response.status_code"]) == ("POST", CHAT, 200)
    assert (call["forebay.request.id"], call["forebay.outcome"]) == (request, "ok")
    inference = dict(spans[INFERENCE].attributes)
    assert float(str(inference.pop("gen_ai.response.time_to_first_chunk"))) > 0
    assert inference == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "forebay",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.id": request,
        "gen_ai.request.stream": True,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 12,
        "gen_ai.response.finish_reasons": ["length", "length"],
        "gen_ai.usage.input_tokens": PROMPT,
        "gen_ai.usage.output_tokens": 24,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "forebay.outcome": "ok",
    }
    process = spans[PROCESS].attributes
    assert (process["gen_ai.usage.input_tokens"], process["gen_ai.usage.output_tokens"]) == (PROMPT, 24)
    assert (process["forebay.request.id"], process["forebay.outcome"]) == (request, "finished")
    assert spans["engine.prefill"].attributes == {"forebay.tokens": PROMPT, "forebay.sequences": 2}
    assert spans["engine.decode"].attributes == {"forebay.tokens": 24}
    assert spans["queue"].attributes["forebay.worker.id"] == traced.worker.link.worker


async def test_a_caller_s_trace_is_joined_if_it_is_one(traced: Traced) -> None:
    trace, span = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    silent = "0af7651916cd43dd8448eb211c80319c"
    good = await traced.ask(ASK, traceparent=f"00-{trace}-{span}-01", tracestate="vendor=1")
    unsampled = await traced.ask(ASK, traceparent=f"00-{silent}-{span}-00", tracestate="vendor=1")
    malformed = [
        await traced.ask(ASK, traceparent=header, tracestate="vendor=1")
        for header in ("", "00-x", f"00-{'0' * 32}-{span}-01", f"00-{trace}-{span}-01-", "\xff" * 55, "0" * 4_096)
    ]
    responses = [good, unsampled, *malformed]
    assert {response.status for response in responses} == {200}
    ids = [response.headers["x-trace-id"] for response in responses]
    assert ids[:2] == [trace, silent]
    assert len(set(ids)) == len(ids)
    joined, nothing, *fresh = await traced.traces(*ids)
    assert joined.keys() == WHOLE
    assert joined[CALL].parent == span
    assert {span.state for span in joined.values()} == {"vendor=1"}
    assert nothing == {}
    for spans in fresh:
        assert spans.keys() == WHOLE
        assert spans[CALL].parent == ""
        assert {span.state for span in spans.values()} == {""}


async def test_a_refusal_is_as_long_as_it_took(traced: Traced) -> None:
    """And what a client makes up is no name of a span: of those there are few."""
    bad = await traced.ask(b"{")
    unknown = await traced.ask(ASK, authorization="Bearer nobody")
    unserved = await traced.ask({**ASK, "model": "made-up"})
    reached = LimitState(metric="requests", limit=1, remaining=0, burst=1)
    traced.limiter.decision = Decision(refused=reached, retry_after_ms=1_000)
    limited = await traced.ask(ASK)
    responses = [bad, unknown, unserved, limited]
    assert [response.status for response in responses] == [400, 401, 404, 429]
    ids = [response.headers["x-trace-id"] for response in responses]
    traces = await traced.traces(*ids, worker=False)
    assert [spans.keys() for spans in traces] == [{CALL}, {CALL}, {CALL, "admission"}, {CALL, "admission"}]
    call, admission = traces[-1][CALL], traces[-1]["admission"]
    assert admission.attributes == {"forebay.outcome": "rate_limit_exceeded"}
    assert admission.parent == call.span
    assert (call.attributes["http.response.status_code"], call.failed) == (429, False)
    assert not any(b"made-up" in data for data in traced.collector.raw)


async def test_a_client_that_leaves_is_seen_to_the_end_of_its_work(traced: Traced) -> None:
    while traced.steps.acquire(blocking=False):
        pass
    traced.steps.release(3)  # the engine stops there
    body = {**ASK, "max_tokens": 400, "stream": True}
    async with traced.http.post(traced.base + CHAT, headers=AUTH, json=body) as response:
        await response.content.readuntil(b"\n\n")
        response.close()
    attempts = traced.worker.link.custody.attempts
    await eventually(lambda: all(attempt.cancelled == "client" for attempt in attempts.all()))
    traced.steps.release(10)
    [spans] = await traced.traces(response.headers["x-trace-id"])
    assert spans.keys() == WHOLE
    assert spans[CALL].attributes["forebay.outcome"] == "client_closed_request"
    assert spans[CALL].attributes["http.response.status_code"] == 200
    assert spans[PROCESS].attributes["forebay.outcome"] == "cancelled"
    assert not any(span.failed for span in spans.values())
    used = spans[INFERENCE].attributes["gen_ai.usage.output_tokens"]
    assert used == spans[PROCESS].attributes["gen_ai.usage.output_tokens"] != 400


async def test_a_client_that_leaves_the_queue_was_never_computed(traced: Traced) -> None:
    traced.principals.callers[KEY] = Caller(tier=7)  # whose queue this worker does not look at
    asking = asyncio.create_task(traced.ask(ASK))
    await eventually(lambda: any(attempt.published_at for attempt in traced.dispatcher._inbox.attempts()))
    asking.cancel()
    await eventually(lambda: any(line["event"] == "request.finished" for line in traced.logs))
    [line] = [line for line in traced.logs if line["event"] == "request.finished"]
    [spans] = await traced.traces(line["trace"], worker=False)
    assert spans.keys() == {CALL, "admission", INFERENCE, "publish JOBS_default_7", "queue"}
    assert "http.response.status_code" not in spans[CALL].attributes
    assert "forebay.worker.id" not in spans["queue"].attributes
    assert spans[INFERENCE].attributes["gen_ai.usage.output_tokens"] == 0
    assert not any(span.failed for span in spans.values())
