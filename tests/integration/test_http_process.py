"""The gateway as a process, with real Postgres and NATS: it starts, tells what it lacks, serves, drains, is cut off."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from gateway.db import pools, seed
from gateway.ledger.consumer import Ledger
from shared import tasks
from shared.bus import Bus
from tests import services
from tests.integration.fleet import Worker, fleet, until
from tests.integration.test_tracing import VOCABULARY
from tests.proxy import through_proxy
from tests.services import NatsServer, free_port
from tests.tiny_model import card

ROOT = Path(__file__).resolve().parents[2]
MODEL = "SmolLM2-135M-Instruct"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@asynccontextmanager
async def process(command: str, **settings: object) -> AsyncGenerator[Process]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    env |= {f"FOREBAY_{name.upper()}": str(value) for name, value in settings.items()}
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cli.main", command, env=env, cwd=ROOT, stdout=DEVNULL, stderr=PIPE
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


class Running:
    """A gateway process and its two ports."""

    def __init__(self, program: Process, port: int, ops_port: int) -> None:
        self.program = program
        self.url = f"http://127.0.0.1:{port}/v1"
        self.ops = f"http://127.0.0.1:{ops_port}"

    async def health(self) -> dict[str, dict[str, str]] | None:
        """The body of readiness; None while nobody answers."""
        try:
            async with aiohttp.ClientSession() as http, http.get(self.ops + "/healthz/ready") as response:
                answer = await response.json()
        except aiohttp.ClientError:
            return None
        assert (response.status == 200) == (not answer["wrong"])
        return answer

    async def wrong(self) -> dict[str, str] | None:
        """What readiness complains of; None while nobody answers."""
        health = await self.health()
        return None if health is None else health["wrong"]

    async def until_wrong(self, *names: str) -> dict[str, str]:
        async with asyncio.timeout(60):
            while True:
                wrong = await self.wrong()
                if wrong is not None and set(wrong) == set(names):
                    return wrong
                assert self.program.returncode is None
                await asyncio.sleep(0.05)


@asynccontextmanager
async def gateway(postgres_url: str, nats_url: str, **settings: object) -> AsyncGenerator[Running]:
    port, ops_port = free_port(), free_port()
    async with process(
        "gateway", postgres_url=postgres_url, nats_url=nats_url, port=port, ops_port=ops_port, **settings
    ) as program:
        yield Running(program, port, ops_port)


def worker(nats_url: str, **settings: object) -> contextlib.AbstractAsyncContextManager[Process]:
    return process("worker", nats_url=nats_url, runner="fake", metrics_port=free_port(), **settings)


async def told(program: Process) -> str:
    """What a program that ends by itself says, without its log."""
    async with asyncio.timeout(60):
        _, stderr = await program.communicate()
    return "\n".join(line for line in stderr.decode().splitlines() if not line.startswith("{"))


async def test_a_gateway_without_workers(database_url: str, nats_server: NatsServer) -> None:
    keys = await seed.demo(database_url, {})
    async with gateway(database_url, nats_server.url) as running:
        assert await running.until_wrong("worker") == {"worker": "no worker is ready"}
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        async with aiohttp.ClientSession() as http:
            async with http.post(running.url + "/chat/completions", json=body) as response:
                assert response.status == 401
            headers = {"authorization": f"Bearer {keys['acme']}"}
            async with http.post(running.url + "/chat/completions", json=body, headers=headers) as response:
                assert response.status == 503
            async with http.get(running.ops + "/healthz/live") as response:
                assert response.status == 200
            async with http.get(running.ops + "/metrics") as response:
                text = await response.text()
                assert "forebay_requests_total" in text
                assert 'forebay_workers{state="ready"} 0.0' in text
        running.program.send_signal(signal.SIGTERM)
        assert await told(running.program) == ""
        assert running.program.returncode == 0


async def test_a_gateway_whose_servers_are_away_starts_and_says_so(nats_server: NatsServer) -> None:
    nats_server.stop()
    async with gateway(NOWHERE, nats_server.url) as running:
        await running.until_wrong("schema", "postgres", "nats", "worker")
        nats_server.start()
        await running.until_wrong("schema", "postgres", "worker")


async def test_readiness_without_postgres_follows_whether_a_key_can_be_served(
    database_url: str, nats_server: NatsServer
) -> None:
    keys = await seed.demo(database_url, {})
    headers = {"authorization": f"Bearer {keys['acme']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    async with (
        through_proxy(database_url) as (proxy, url),
        gateway(url, nats_server.url) as running,
        worker(nats_server.url, fake_step_us=1_000),
        aiohttp.ClientSession() as http,
    ):

        async def until_served() -> None:
            async with asyncio.timeout(60):
                while True:  # a share starts empty
                    async with http.post(running.url + "/chat/completions", json=body, headers=headers) as response:
                        if response.status == 200:
                            return
                    await asyncio.sleep(0.05)

        await running.until_wrong()
        await proxy.cut()
        await running.until_wrong("postgres")  # nobody has called, so it knows no key
        await proxy.listen()
        await running.until_wrong()
        await until_served()
        await proxy.cut()
        async with asyncio.timeout(60):
            while not (health := await running.health()) or set(health["impaired"]) != {"postgres"}:
                assert health is not None
                assert "postgres" not in health["wrong"]
                await asyncio.sleep(0.05)
        await until_served()
        async with http.get(running.ops + "/metrics") as response:
            assert "forebay_postgres_away 1.0" in await response.text()


async def test_a_database_that_was_never_migrated(postgres_url: str, nats_server: NatsServer) -> None:
    name = f"empty_{free_port()}"
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(f'CREATE DATABASE "{name}"')
        async with gateway(services.database_url(postgres_url, name), nats_server.url) as running:
            assert "forebay migrate" in await told(running.program)
            assert running.program.returncode == 1
        await connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
    finally:
        await connection.close()


@pytest.mark.parametrize("which", ["port", "ops_port"])
async def test_a_port_that_is_taken(database_url: str, nats_server: NatsServer, which: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {"port": free_port(), "ops_port": free_port(), which: taken.getsockname()[1]}
        urls = {"postgres_url": database_url, "nats_url": nats_server.url}
        async with process("gateway", **urls, **ports) as program:
            said = await told(program)
    assert program.returncode == 1
    assert len(said.splitlines()) == 1
    assert "listen" in said


@asynccontextmanager
async def stepwise(nats_url: str) -> AsyncGenerator[tuple[Worker, threading.Semaphore]]:
    """A worker in this process whose engine does as many steps as the semaphore allows: three at first."""
    steps = threading.Semaphore(3)
    async with fleet(nats_url, step_slow_s=60) as workers:
        try:
            yield workers.start(card=card(), vocabulary=VOCABULARY, sleep=lambda _: steps.acquire(timeout=60)), steps
        finally:
            steps.release(10_000)


@pytest.mark.parametrize(("drain_s", "whole"), [(60, True), (0.2, False)])
async def test_sigterm_while_a_stream_runs(
    database_url: str, nats_server: NatsServer, drain_s: float, whole: bool
) -> None:
    keys = await seed.demo(database_url, {})
    headers = {"authorization": f"Bearer {keys['acme']}"}
    body = {"model": card().name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 150, "stream": True}
    async with (
        gateway(database_url, nats_server.url, drain_s=drain_s) as running,
        stepwise(nats_server.url) as (served, steps),
        aiohttp.ClientSession() as http,
    ):
        await running.until_wrong()
        async with http.post(running.url + "/chat/completions", json=body, headers=headers) as response:
            assert response.status == 200
            request_id = response.headers["x-request-id"]
            seen = await response.content.readany()
            running.program.send_signal(signal.SIGTERM)
            if whole:
                await running.until_wrong("gate")
                async with http.get(running.url + "/nothing") as refused:
                    assert refused.status == 404  # it still answers
                async with http.post(running.url + "/chat/completions", json=body, headers=headers) as refused:
                    assert refused.status == 503
                steps.release(10_000)
            seen += await response.content.read()
        await until(lambda: all(attempt.cancelled for attempt in served.link.custody.attempts.all()))
        steps.release(10_000)
        assert await told(running.program) == ""
        assert running.program.returncode == 0
        last = seen.decode().strip().split("\n\n")[-1].removeprefix("data: ")
        assert seen.count(b'"finish_reason":"length"') == whole
        if whole:
            assert last == "[DONE]"
        else:
            assert json.loads(last)["error"]["code"] == "server_is_overloaded"
        row = await bill(database_url, nats_server.url, request_id)
        assert row["final"]
        assert row["finish"] == ("length" if whole else "cancelled")
        assert 0 < row["completion_tokens"] <= 150
        assert (row["completion_tokens"] == 150) == whole


async def bill(database_url: str, nats_url: str, request_id: str) -> asyncpg.Record:
    """The request's usage event, which another ledger may have to write."""
    async with pools.create(database_url, connections_max=2) as pool, Bus(nats_url, name="test", role="ledger") as bus:
        ledger = asyncio.create_task(Ledger(bus, pool).run())
        try:
            async with asyncio.timeout(60):
                while True:
                    rows = await pool.fetch("SELECT * FROM usage_events WHERE request_id = $1", request_id)
                    if rows:
                        [row] = rows
                        return row
                    await asyncio.sleep(0.05)
        finally:
            await tasks.stop([ledger])
