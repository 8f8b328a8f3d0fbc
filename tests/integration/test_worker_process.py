"""The worker as a process: it starts, answers, reports, drains at SIGTERM, and leaves one bill behind at SIGKILL."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.errors import WorkerLost
from tests import services
from tests.integration.fleet import gateway, job, opened, read, ready, tokens, until, usage

PROGRAM = """
import os
from shared.settings import load
from worker import app
from worker.settings import WorkerSettings

app.run(load(WorkerSettings, os.environ))
"""
# What a fake runner does instead of computing is to sleep; here it does so for 20 steps.
DYING = """
import time
from worker.engine.runner import RunnerBroken

left, sleep = iter(range(20)), time.sleep

def compute(seconds):
    if seconds == 0.005 and next(left, None) is None:
        raise RunnerBroken("the device cuda:0 has failed")
    sleep(seconds)

time.sleep = compute
"""
ROOT = Path(__file__).resolve().parents[2]
MODEL = "SmolLM2-135M-Instruct"


class WorkerProcess:
    def __init__(self, nats_url: str, *, program: str = PROGRAM, **settings: object) -> None:
        self.port = services.free_port()
        names = {"NATS_URL": nats_url, "METRICS_PORT": self.port, "RUNNER": "fake", "FAKE_STEP_US": 5_000, **settings}
        env = {**os.environ, **{f"FOREBAY_{name}": str(value) for name, value in names.items()}}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program], env=env, cwd=ROOT, stderr=subprocess.PIPE, text=True
        )

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str) -> float:
        [value] = [line.split()[-1] for line in self.get("/metrics")[1].splitlines() if line.startswith(f"{name} ")]
        return float(value)

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def worker(nats_server: services.NatsServer) -> Iterator[WorkerProcess]:
    with contextlib.closing(WorkerProcess(nats_server.url)) as process:
        yield process


async def test_it_serves_reports_and_drains(nats_server: services.NatsServer, worker: WorkerProcess) -> None:
    async with gateway(nats_server.url) as dispatcher:
        await until(dispatcher.fleet.models, 120)
        await ready(dispatcher)
        [info] = dispatcher.fleet.models()
        model = dispatcher.fleet.card(MODEL)
        assert info.name == MODEL
        assert model is not None
        assert model.request_tokens_max == model.context_length == 8192
        assert await asyncio.to_thread(worker.get, "/healthz/ready") == (200, "ok\n")
        assert await asyncio.to_thread(worker.get, "/healthz/live") == (200, "ok\n")
        assert (await asyncio.to_thread(worker.get, "/nothing"))[0] == 404
        async with opened(dispatcher, job(dispatcher, model=MODEL, max_tokens=5_000)) as stream:
            await stream.next()
            assert await asyncio.to_thread(worker.metric, "forebay_sequences_running") == 1
        async with opened(dispatcher, job(dispatcher, model=MODEL, max_tokens=200)) as stream:
            await stream.next()
            worker.process.send_signal(signal.SIGTERM)
            await read(stream)
        assert stream.completion_tokens == 200
        assert await asyncio.to_thread(worker.process.wait, 60) == 0
        [left, whole] = await usage(nats_server.url, expected=2)
        assert (left.finish, whole.finish, whole.completion_tokens) == ("cancelled", "length", 200)


async def test_its_metrics_add_up(nats_server: services.NatsServer, worker: WorkerProcess) -> None:
    async with gateway(nats_server.url) as dispatcher:
        await until(dispatcher.fleet.models, 120)
        asked = [job(dispatcher, model=MODEL, max_tokens=10, prompt=7) for _ in range(5)]
        await asyncio.gather(*(_ask(dispatcher, wanted) for wanted in asked))

        def look() -> None:
            assert worker.metric("forebay_kv_blocks_free") == worker.metric("forebay_kv_blocks") > 100
            assert worker.metric("forebay_sequences_running") == worker.metric("forebay_sequences_waiting") == 0
            assert worker.metric("forebay_prompt_tokens_total") == 35
            assert worker.metric("forebay_generated_tokens_total") == 50
            assert worker.metric("forebay_preemptions_total") == 0
            assert worker.metric("forebay_engine_step_seconds_count") >= 10

        await asyncio.to_thread(look)


async def test_sigkill_ends_its_streams_with_one_error_and_one_bill(
    nats_server: services.NatsServer, worker: WorkerProcess
) -> None:
    async with gateway(nats_server.url) as dispatcher:
        await until(dispatcher.fleet.models, 120)
        got = 0
        with pytest.raises(WorkerLost):
            async with opened(dispatcher, job(dispatcher, model=MODEL, max_tokens=2000)) as stream:
                while chunks := await stream.next():
                    got += len(tokens(chunks))
                    if got >= 10:
                        worker.process.kill()
        assert dispatcher.fleet.models() == []
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.completion_tokens) == ("lost", got)


async def test_a_frozen_process_that_wakes_up_stops_working_for_nobody(
    nats_server: services.NatsServer, worker: WorkerProcess
) -> None:
    async with gateway(nats_server.url) as dispatcher:
        await until(dispatcher.fleet.models, 120)
        with pytest.raises(WorkerLost):
            async with opened(dispatcher, job(dispatcher, model=MODEL, max_tokens=2000)) as stream:
                await stream.next()
                worker.process.send_signal(signal.SIGSTOP)
                await read(stream)
        worker.process.send_signal(signal.SIGCONT)
        await until(dispatcher.fleet.models)
        async with asyncio.timeout(60):
            while await asyncio.to_thread(worker.metric, "forebay_sequences_running"):
                await asyncio.sleep(0.05)
        await _ask(dispatcher, job(dispatcher, model=MODEL))
        events = await usage(nats_server.url, expected=2)
        assert sorted(event.finish for event in events) == ["length", "lost"]


async def test_a_process_whose_engine_hangs_says_so_and_still_leaves_when_told(
    nats_server: services.NatsServer,
) -> None:
    settings = {"FAKE_STEP_US": 10**9, "STEP_S_MAX": 0.5, "DRAIN_S": 0}
    async with gateway(nats_server.url) as dispatcher:
        with contextlib.closing(WorkerProcess(nats_server.url, **settings)) as worker:
            await until(dispatcher.fleet.models, 120)
            with pytest.raises(WorkerLost):
                await _ask(dispatcher, job(dispatcher, model=MODEL))
            for path in ("/healthz/live", "/healthz/ready"):
                assert await asyncio.to_thread(worker.get, path) == (503, "a step has taken over 0.5 s\n")
            assert await asyncio.to_thread(worker.metric, "forebay_engine_healthy") == 0
            assert await asyncio.to_thread(worker.metric, "forebay_engine_step_age_seconds") > 0.5
            worker.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.process.wait, 60) == 0


async def test_a_process_whose_device_has_failed_says_so_and_ends(nats_server: services.NatsServer) -> None:
    async with gateway(nats_server.url) as dispatcher:
        with contextlib.closing(WorkerProcess(nats_server.url, program=DYING + PROGRAM)) as worker:
            await until(dispatcher.fleet.models, 120)
            with pytest.raises(WorkerLost):
                await _ask(dispatcher, job(dispatcher, model=MODEL, max_tokens=2000))
            _, text = await asyncio.to_thread(worker.process.communicate, timeout=60)
            assert worker.process.returncode == 1
            assert text.strip().splitlines()[-1] == "forebay worker: the device cuda:0 has failed"
        [event] = await usage(nats_server.url, expected=1)
        assert (event.finish, event.completion_tokens) == ("error", 20)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"MODEL": "/nowhere/model.gguf"}, "/nowhere/model.gguf"),
        ({"MODEL": __file__}, "test_worker_process.py"),
        ({"KV_BYTES": 1000}, "FOREBAY_KV_BYTES"),
        ({"RUNNER": "triton", "DEVICE": "cuda:1"}, "--device cuda:1 needs a CUDA device"),
        ({"TOKENS_PER_STEP": 1}, "tokens_per_step"),
    ],
)
def test_a_worker_that_cannot_start_says_why_in_one_sentence(
    nats_server: services.NatsServer, settings: dict[str, object], told: str
) -> None:
    with contextlib.closing(WorkerProcess(nats_server.url, **settings)) as process:
        _, text = process.process.communicate(timeout=120)
        assert process.process.returncode == 1
        last = text.strip().splitlines()[-1]
        assert last.startswith("forebay worker: ")
        assert told in last
        assert "Traceback" not in text


async def _ask(dispatcher, wanted) -> None:
    async with opened(dispatcher, wanted) as stream:
        await read(stream)
