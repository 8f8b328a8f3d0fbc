"""Client and load generator against a real HTTP server that behaves and misbehaves."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from bench import load, load_command
from bench.client import Client
from bench.workload import Workload
from tests.services import free_port

ANSWER = {"choices": [{"text": "a b"}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


class Server:
    """Answers each request in the way that its `model` names."""

    def __init__(self) -> None:
        self.open = 0
        self.open_max = 0
        self.bodies: list[dict[str, object]] = []
        self.authorizations: set[str | None] = set()
        self.url = ""
        self.together_min = 0
        self.all_here = asyncio.Event()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.open += 1
        self.open_max = max(self.open_max, self.open)
        try:
            body = json.loads(await request.read())
            self.bodies.append(body)
            self.authorizations.add(request.headers.get("Authorization"))
            return await getattr(self, body["model"])(request)
        finally:
            self.open -= 1

    async def good(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.005)  # long enough for others to be seen beside it
        if not self.bodies[-1]["stream"]:
            return web.json_response(ANSWER)
        usage = {"choices": [], "usage": ANSWER["usage"]}
        return await self.events(request, {"choices": [{"text": ""}]}, chunk("a"), chunk(" b"), usage, "[DONE]")

    async def full(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {}}, status=429)

    async def endless(self, request: web.Request) -> web.StreamResponse:
        return await self.events(request, chunk("a"))

    async def broken(self, request: web.Request) -> web.StreamResponse:
        response = await self.events(request, chunk("a"), end=False)
        assert request.transport is not None
        request.transport.abort()
        return response

    async def failing(self, request: web.Request) -> web.StreamResponse:
        return await self.events(request, chunk("a"), {"error": {"message": "lost"}}, "[DONE]")

    async def garbage(self, request: web.Request) -> web.StreamResponse:
        return await self.events(request, "{", "[DONE]")

    async def together(self, request: web.Request) -> web.StreamResponse:
        """Answers nobody before all are here."""
        if len(self.bodies) >= self.together_min:
            self.all_here.set()
        await self.all_here.wait()
        return await self.events(request, chunk("a"), "[DONE]")

    async def silent(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits so long")

    async def events(self, request: web.Request, *payloads: object, end: bool = True) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for payload in payloads:
            text = payload if isinstance(payload, str) else json.dumps(payload)
            await response.write(f"data: {text}\n\n".encode())
        if end:
            await response.write_eof()
        return response


def chunk(text: str) -> dict[str, object]:
    return {"choices": [{"text": text}]}


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    application = web.Application()
    application.router.add_post("/v1/completions", server.complete)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()


def workload(model: str, *, stream: bool = True) -> Workload:
    return Workload(model=model, api="completions", prompt_tokens=3, output_tokens=2, stream=stream)


async def test_closed_clients_share_the_requests_and_never_exceed_their_number(server: Server) -> None:
    async with Client(server.url, "secret") as client:
        report = await load.closed(client, workload("good"), clients=3, requests=20)
    assert (report.requests, report.failures) == (20, {})
    assert (report.output_tokens, report.prompt_tokens, report.events) == (40, 60, 40)
    assert report.itl is not None
    assert server.open_max == 3
    assert len({str(body["prompt"]) for body in server.bodies}) == 20
    assert server.authorizations == {"Bearer secret"}


async def test_without_streaming_the_first_text_is_the_whole(server: Server) -> None:
    async with Client(server.url) as client:
        report = await load.closed(client, workload("good", stream=False), clients=1, requests=2)
    assert (report.failures, report.output_tokens, report.events) == ({}, 4, 2)
    assert report.ttft is not None
    assert report.itl is None
    assert server.authorizations == {None}


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("full", "http_429"),
        ("endless", "no_done"),
        ("broken", "broken"),
        ("failing", "error_event"),
        ("garbage", "bad_body"),
    ],
)
async def test_each_failure_has_its_name(server: Server, model: str, kind: str) -> None:
    async with Client(server.url) as client:
        report = await load.closed(client, workload(model), clients=2, requests=4)
    assert report.failures == {kind: 4}


async def test_a_server_that_says_nothing_is_a_timeout(server: Server) -> None:
    async with Client(server.url, timeout_s=0.2) as client:
        assert (await client.send(workload("silent"), 0)).failure == "timeout"


async def test_nobody_listening_is_a_failure_to_connect() -> None:
    async with Client(f"http://127.0.0.1:{free_port()}/v1") as client:
        assert (await client.send(workload("good"), 0)).failure == "connect"


async def test_a_request_counts_from_when_it_was_due(server: Server) -> None:
    async with Client(server.url) as client:
        outcome = await client.send(workload("good"), 0, planned_s=-5.0)
    assert outcome.planned_s == -5.0
    assert outcome.sent_s > 0


async def test_open_arrivals_do_not_wait_for_answers(server: Server) -> None:
    server.together_min = len(list(load.arrivals(200, 0.1, seed=1)))
    assert server.together_min > 5
    async with Client(server.url, timeout_s=20) as client:
        report = await load.poisson(client, workload("together"), rate=200, duration_s=0.1)
    assert report.failures == {}
    assert report.requests == server.together_min


def test_arrivals_have_the_rate_that_was_asked_and_repeat_by_seed() -> None:
    times = list(load.arrivals(100, 50, seed=1))
    assert times == list(load.arrivals(100, 50, seed=1))
    assert times != list(load.arrivals(100, 50, seed=2))
    assert times[0] == 0
    assert times == sorted(times)
    assert times[-1] < 50
    assert 4_600 < len(times) < 5_400
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert sum(gap > 0.02 for gap in gaps) / len(gaps) == pytest.approx(0.135, abs=0.03)  # exp(-2): no even spacing


async def test_the_report_s_text_names_failures_and_latencies(server: Server) -> None:
    async with Client(server.url) as client:
        good = await load.closed(client, workload("good"), clients=1, requests=1)
        bad = await load.closed(client, workload("full"), clients=1, requests=2)
    assert "output tokens/s" in load_command.text(good)
    assert "2 http_429" in load_command.text(bad)
