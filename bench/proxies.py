"""Other gateways on the same machine, in front of a server that answers at once, under the load of `bench.gateway`.

LiteLLM is measured if `litellm` is on the PATH, with one worker process and one key. It keeps no limits and writes no
bills here, so what it is asked to do is less than what ours does.
"""

import contextlib
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path

import msgspec
import uvloop

from bench import load, peers
from bench.client import Client
from bench.errors import BenchError
from bench.measure import Measure
from bench.percentiles import Spread
from bench.report import Report
from bench.workload import Workload

LITELLM = "LiteLLM"
REQUESTS_TIMES_MIN, CHUNKS_TIMES_MIN = 6, 16  # ours, of its
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
WARM_ROUNDS = 2  # of every client
SLOWER = 5  # it gets this many times fewer requests, and one round of streams, or it would take most of the run


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """The load of every gateway: one request at a time, requests of many clients, and streams of many clients."""

    idle: Workload
    idle_requests: int
    whole: Workload
    whole_clients: int
    whole_requests: int
    streamed: Workload
    stream_clients: int
    streams: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """Of one gateway. For a core: divided by its own processor time."""

    added_ms: float  # to the first token, p50, when idle
    requests_per_s: float
    requests_per_core_s: float
    chunks_per_s: float
    chunks_per_core_s: float


def measured(loads: Loads, model: str) -> dict[str, Speed]:
    """By name. Raises BenchError when one that is installed cannot be measured."""
    program = shutil.which("litellm")
    if program is None:
        return {}
    with tempfile.TemporaryDirectory(prefix="forebay-proxies-") as name:
        folder = Path(name)
        with _upstream(folder) as upstream, _litellm(Path(program), folder, upstream.base_url, model) as (proxy, key):
            return {LITELLM: uvloop.run(_measure(proxy, key, upstream.base_url, loads))}


def bare(workload: Workload, requests: int) -> Spread:
    """The first token of the server behind them, asked directly: what client and HTTP take without any gateway."""
    with tempfile.TemporaryDirectory(prefix="forebay-bare-") as name, _upstream(Path(name)) as upstream:
        return uvloop.run(_direct(upstream.base_url, workload, requests))


def compared(ours: Speed, name: str, theirs: Speed) -> list[Measure]:
    return [
        Measure(f"{name}: added to the first token, idle, p50", theirs.added_ms, "ms"),
        Measure(f"{name}: requests", theirs.requests_per_s, "1/s"),
        Measure(f"{name}: requests for a core", theirs.requests_per_core_s, "1/s"),
        Measure(f"{name}: SSE chunks", theirs.chunks_per_s, "1/s"),
        Measure(f"{name}: SSE chunks for a core", theirs.chunks_per_core_s, "1/s"),
        _times(f"requests, times {name}'s", ours.requests_per_s, theirs.requests_per_s),
        _times(
            f"requests for a core, times {name}'s",
            ours.requests_per_core_s,
            theirs.requests_per_core_s,
            REQUESTS_TIMES_MIN,
        ),
        _times(f"SSE chunks, times {name}'s", ours.chunks_per_s, theirs.chunks_per_s),
        _times(
            f"SSE chunks for a core, times {name}'s", ours.chunks_per_core_s, theirs.chunks_per_core_s, CHUNKS_TIMES_MIN
        ),
        _times(f"added to the first token, times {name}'s", ours.added_ms, theirs.added_ms),
    ]


def _times(what: str, ours: float, theirs: float, least: float | None = None) -> Measure:
    return Measure(what, ours / theirs, "", None if least is None else (">=", least))


@contextlib.contextmanager
def _upstream(folder: Path) -> Generator[peers.Running]:
    serve = [sys.executable, "-m", "granian", "--interface", "asginl", "--no-ws", "bench.upstream:app"]
    with peers.running(peers.Peer("upstream", serve), folder / "upstream.log") as running:
        yield running


@contextlib.contextmanager
def _litellm(program: Path, folder: Path, upstream: str, model: str) -> Generator[tuple[peers.Running, str]]:
    """The running gateway and a key that it accepts."""
    key = f"sk-{secrets.token_hex(24)}"  # it refuses to start with a short key
    served = {"model": f"openai/{model}", "api_base": upstream, "api_key": "unused"}
    settings = {
        "model_list": [{"model_name": model, "litellm_params": served}],
        "general_settings": {"master_key": key},
    }
    config = folder / "litellm.yaml"
    config.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
    command = [str(program), "--config", str(config), "--num_workers", "1", "--telemetry", "False"]
    peer = peers.Peer(LITELLM, command, probe="/health/liveliness")
    with peers.running(peer, folder / "litellm.log") as running:
        yield running, key


async def _measure(proxy: peers.Running, key: str, upstream: str, loads: Loads) -> Speed:
    direct = await _direct(upstream, loads.idle, loads.idle_requests)
    async with Client(proxy.base_url, key) as client:
        await _sent(client, loads.idle, clients=1, requests=WARM_ROUNDS)
        idle = await _sent(client, loads.idle, clients=1, requests=loads.idle_requests)
        warm_requests = loads.whole_clients * WARM_ROUNDS
        await _sent(client, loads.whole, clients=loads.whole_clients, requests=warm_requests)
        start_s = proxy.cpu_s
        requests = max(loads.whole_requests // SLOWER, loads.whole_clients)
        whole = await _sent(client, loads.whole, clients=loads.whole_clients, requests=requests)
        whole_s, start_s = proxy.cpu_s - start_s, proxy.cpu_s
        streamed = await _sent(client, loads.streamed, clients=loads.stream_clients, requests=loads.stream_clients)
        streamed_s = proxy.cpu_s - start_s
    assert idle.ttft is not None
    return Speed(
        added_ms=(idle.ttft.p50 - direct.p50) * 1_000,
        requests_per_s=whole.requests_per_s,
        requests_per_core_s=_a_core_s(whole.requests, whole_s),
        chunks_per_s=streamed.events_per_s,
        chunks_per_core_s=_a_core_s(streamed.events, streamed_s),
    )


async def _direct(upstream: str, workload: Workload, requests: int) -> Spread:
    async with Client(upstream) as client:
        await _sent(client, workload, clients=1, requests=WARM_ROUNDS)
        found = await _sent(client, workload, clients=1, requests=requests)
    assert found.ttft is not None
    return found.ttft


def _a_core_s(count: int, cpu_s: float) -> float:
    """Per second of processor time, which is counted in whole clock ticks; less than one tick counts as one."""
    return count / max(cpu_s, TICK_S)


async def _sent(client: Client, workload: Workload, *, clients: int, requests: int) -> Report:
    report = await load.closed(client, workload, clients=clients, requests=requests)
    if report.failures:
        raise BenchError(f"requests failed: {report.failures}")
    return report
