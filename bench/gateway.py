"""Benchmark of the gateway against a fake engine that answers at once: added latency, throughput, processor time.

Limits and usage are on, and every request's bill is waited for. A machine with few cores runs client, gateway, worker,
NATS and Postgres on the same ones, so throughput is given twice: as it was seen, and for one core, which is the work
divided by the gateway's own processor time. Only the second is compared with a target. Another gateway that is
installed (`bench.proxies`) is measured in the same run.
"""

import asyncio
import time
from dataclasses import dataclass

import msgspec
import uvloop

from bench import admission, first_token, gateway_parts, launch, load, machine, open_streams, proxies, tenant
from bench.client import Client
from bench.errors import BenchError
from bench.gateway_size import FULL, QUICK, Size
from bench.measure import COLUMNS, Measure
from bench.percentiles import Spread
from bench.record import RESULTS, append
from bench.report import Report
from bench.table import render
from bench.tenant import Tenant
from bench.workload import Workload
from shared import log

FILE = "gateway.csv"
MODEL = "SmolLM2-135M-Instruct"
KV_BYTES = 8 * 2**30  # of a pool that is only counted: no request waits for blocks
PROMPT_TOKENS = 16
WARM_ROUNDS = 3  # of every client
IDLE_S = 3.0
BODIES = {0.3: 16, 4: 600, 400: 65_000}  # kilobytes: words
BODY_CLIENTS = 16
REQUEST_SECONDS_MAX = 60.0
BILLS_SECONDS_MAX = 60.0  # an event whose delivery went wrong comes again after the consumer's ack_wait


class Load(msgspec.Struct, frozen=True):
    report: Report
    cpu_s: float  # of the gateway, until the last bill was written
    bills_s: float  # from the last answer to the last bill
    by_process_s: dict[str, float]  # processor time of each process of the stack, over the same while


@dataclass(slots=True)
class Bench:
    """One stack, one tenant, and how many requests it has sent."""

    stack: launch.Stack
    tenant: Tenant
    client: Client
    sent: int = 0

    async def load(self, workload: Workload, *, clients: int, requests: int) -> Load:
        """Send, and wait for the bills. Raises BenchError when a request failed, or was not billed once."""
        before_s = self.stack.cpu_by_process_s()
        report = await load.closed(self.client, workload, clients=clients, requests=requests)
        self.sent += requests
        if report.failures:
            raise BenchError(f"requests failed: {report.failures}")
        answered_s = time.perf_counter()
        billed = await self.tenant.bills(expected=self.sent, seconds_max=BILLS_SECONDS_MAX)
        if billed != self.sent:
            raise BenchError(f"{self.sent} requests were answered and {billed} billed")
        bills_s = time.perf_counter() - answered_s
        by_process_s = {name: at_s - before_s[name] for name, at_s in self.stack.cpu_by_process_s().items()}
        return Load(report, by_process_s[launch.GATEWAY], bills_s, by_process_s)


def run(*, quick: bool = False) -> None:
    """Measure, print, record. Ends with status 1 when a request failed or was not billed.

    Parameters
    ----------
    quick
        Fewer requests: shows that everything works, and roughly how fast.
    """
    before = machine.provenance()
    log.configure(level="error", service="bench")  # the limiter that runs in this process speaks up
    size = QUICK if quick else FULL
    bare = proxies.bare(_loads(size).idle, size.idle_requests)
    with launch.running(runner="fake", fake_step_us=0, fake_token_us=0, kv_bytes=KV_BYTES) as stack:
        speed, measures = uvloop.run(_measure(stack, size, bare))
    measures += uvloop.run(open_streams.measures(size.streams_open))
    for name, theirs in proxies.measured(_loads(size), MODEL).items():
        measures += proxies.compared(speed, name, theirs)
    print(f"\nGateway: fake engine; {machine.described(before)}\n")
    print(render(COLUMNS, [measure.cells for measure in measures]))
    append(RESULTS / FILE, [{**before, **dict(zip(COLUMNS, measure.cells, strict=True))} for measure in measures])


async def _measure(stack: launch.Stack, size: Size, bare: Spread) -> tuple[proxies.Speed, list[Measure]]:
    async with (
        tenant.create(stack.postgres_url) as own,
        Client(stack.base_url, own.key, timeout_s=REQUEST_SECONDS_MAX) as client,
    ):
        bench = Bench(stack, own, client)
        loads = _loads(size)
        added_ms, first = await _first_token(bench, loads, bare)
        idle = await _idle(bench)
        whole = await _whole(bench, loads)
        streamed = await bench.load(loads.streamed, clients=loads.stream_clients, requests=loads.streams)
        speed = proxies.Speed(
            added_ms=added_ms,
            requests_per_s=whole.report.requests_per_s,
            requests_per_core_s=whole.report.requests / whole.cpu_s,
            chunks_per_s=streamed.report.events_per_s,
            chunks_per_core_s=streamed.report.events / streamed.cpu_s,
        )
        return speed, [
            *first,
            idle,
            *_of_requests(whole, loads),
            *_by_process(whole),
            *_of_streams(streamed, loads),
            *await _bodies(bench, size),
            *await _arrivals(bench, size),
            *await _parts(),
            *await _admission(bench, size),
        ]


def _loads(size: Size) -> proxies.Loads:
    def workload(tokens: int, seed: int, *, stream: bool = True) -> Workload:
        return Workload(
            model=MODEL, api="chat", prompt_tokens=PROMPT_TOKENS, output_tokens=tokens, stream=stream, seed=seed
        )

    return proxies.Loads(
        idle=workload(size.idle_tokens, 1),
        idle_requests=size.idle_requests,
        whole=workload(size.request_tokens, 2, stream=False),
        whole_clients=size.request_clients,
        whole_requests=size.requests,
        streamed=workload(size.stream_tokens, 3),
        stream_clients=size.stream_clients,
        streams=size.streams,
    )


async def _first_token(bench: Bench, loads: proxies.Loads, bare: Spread) -> tuple[float, list[Measure]]:
    """One request at a time. What gateway and NATS add at p50, in ms, and what is shown. It is counted from what the
    engine takes in process and a server that answers at once over HTTP, so without either, and without the client: as
    for other gateways, whose own server is asked directly.
    """
    await bench.load(loads.idle, clients=1, requests=WARM_ROUNDS)
    done = await bench.load(loads.idle, clients=1, requests=loads.idle_requests)
    engine = first_token.in_process(
        prompt_tokens=done.report.prompt_tokens // done.report.requests,
        output_tokens=loads.idle.output_tokens,
        requests=loads.idle_requests,
    )
    served = _some(done.report.ttft)
    direct_s = engine.p50 + bare.p50
    added_ms = (served.p50 - direct_s) * 1_000
    return added_ms, [
        Measure("first token over HTTP, idle, p50", served.p50 * 1_000, "ms"),
        Measure("first token over HTTP, idle, p99", served.p99 * 1_000, "ms"),
        Measure("first token of the engine in process, p50", engine.p50 * 1_000, "ms"),
        Measure("first token of a bare server over HTTP, p50", bare.p50 * 1_000, "ms"),
        Measure("added to the first token, idle, p50", added_ms, "ms", ("<=", 3)),
        Measure("added to the first token, idle, p99", (served.p99 - direct_s) * 1_000, "ms", ("<=", 10)),
    ]


async def _idle(bench: Bench) -> Measure:
    """What beats, polls and the ledger take while nothing is asked: it is in every processor time below."""
    cpu_s = bench.stack.cpu_s(launch.GATEWAY)
    await asyncio.sleep(IDLE_S)
    return Measure("gateway's core in use, idle", (bench.stack.cpu_s(launch.GATEWAY) - cpu_s) / IDLE_S * 100, "%")


async def _whole(bench: Bench, loads: proxies.Loads) -> Load:
    clients = loads.whole_clients
    await bench.load(loads.whole, clients=clients, requests=clients * WARM_ROUNDS)
    return await bench.load(loads.whole, clients=clients, requests=loads.whole_requests)


def _of_requests(done: Load, loads: proxies.Loads) -> list[Measure]:
    kind = f"not streamed, {loads.whole_clients} clients, {loads.whole.output_tokens} tokens"
    report, cpu_s, e2e = done.report, done.cpu_s, _some(done.report.e2e)
    return [
        Measure(f"requests, {kind}", report.requests_per_s, "1/s"),
        Measure(f"requests for a core, {kind}", report.requests / cpu_s, "1/s", (">=", 600)),
        Measure("gateway processor time of a request", cpu_s / report.requests * 1_000, "ms"),
        Measure("request under this load, p50", e2e.p50 * 1_000, "ms"),
        Measure("request under this load, p99", e2e.p99 * 1_000, "ms"),
        Measure("last bill written after the last answer", done.bills_s * 1_000, "ms"),
        Measure("load generator's core in use", report.client_cpu * 100, "%"),
    ]


def _by_process(done: Load) -> list[Measure]:
    """What a request costs the machine, which is what bounds the requests that are seen where all share its cores."""
    report = done.report
    each_s = {**done.by_process_s, "load generator": report.client_cpu * report.wall_s}
    each_s["all of them"] = sum(each_s.values())
    return [
        Measure(f"processor time of a request: {name}", spent_s / report.requests * 1_000, "ms")
        for name, spent_s in each_s.items()
    ]


def _of_streams(done: Load, loads: proxies.Loads) -> list[Measure]:
    kind = f"{loads.stream_clients} streams, {loads.streamed.output_tokens} tokens"
    report, cpu_s = done.report, done.cpu_s
    return [
        Measure(f"SSE chunks, {kind}", report.events_per_s, "1/s"),
        Measure(f"SSE chunks for a core, {kind}", report.events / cpu_s, "1/s", (">=", 25_000)),
        Measure("gateway processor time of a chunk", cpu_s / report.events * 1e6, "us"),
        Measure("tokens in a chunk", report.output_tokens / report.events, ""),
        Measure("load generator's core in use, streams", report.client_cpu * 100, "%"),
    ]


async def _bodies(bench: Bench, size: Size) -> list[Measure]:
    """By the size of the body. The largest is beyond any context, and refused for it once enough tokens are counted."""
    measured: list[Measure] = []
    for kilobytes, words in BODIES.items():
        workload = Workload(model=MODEL, api="chat", prompt_tokens=words, output_tokens=1, stream=False, seed=words)
        cpu_s = bench.stack.cpu_s(launch.GATEWAY)
        report = await load.closed(bench.client, workload, clients=BODY_CLIENTS, requests=size.body_requests)
        cpu_s = bench.stack.cpu_s(launch.GATEWAY) - cpu_s
        if report.failures not in ({}, {"http_400": size.body_requests}):
            raise BenchError(f"requests failed: {report.failures}")
        bench.sent += report.ok
        kind = f"a request of {kilobytes:g} KB{', refused' if report.failures else ''}"
        measured.append(Measure(f"gateway processor time of {kind}", cpu_s / report.requests * 1_000, "ms"))
    await bench.tenant.bills(expected=bench.sent, seconds_max=BILLS_SECONDS_MAX)
    return measured


async def _arrivals(bench: Bench, size: Size) -> list[Measure]:
    """The first token while requests arrive by themselves, counted from when each was due."""
    measured: list[Measure] = []
    for rate in size.arrival_rates:
        workload = Workload(
            model=MODEL, api="chat", prompt_tokens=PROMPT_TOKENS, output_tokens=size.idle_tokens, seed=int(rate)
        )
        report = await load.poisson(bench.client, workload, rate=rate, duration_s=size.arrivals_s)
        if report.failures:
            raise BenchError(f"requests failed: {report.failures}")
        bench.sent += report.requests
        ttft = _some(report.ttft)
        measured += [
            Measure(f"first token at {rate:g} arrivals/s, p50", ttft.p50 * 1_000, "ms"),
            Measure(f"first token at {rate:g} arrivals/s, p99", ttft.p99 * 1_000, "ms"),
        ]
    await bench.tenant.bills(expected=bench.sent, seconds_max=BILLS_SECONDS_MAX)
    return measured


async def _parts() -> list[Measure]:
    workload = Workload(model=MODEL, api="chat", prompt_tokens=PROMPT_TOKENS, output_tokens=8, stream=False)
    return [Measure(f"alone: {part.name}", part.us, "us") for part in await gateway_parts.measured(workload)]


async def _admission(bench: Bench, size: Size) -> list[Measure]:
    measured: list[Measure] = []
    for which, limits in (("", bench.tenant.limits), (", every limit", admission.every_limit(bench.tenant))):
        found = await admission.decisions(
            bench.stack.postgres_url, bench.tenant, limits, rate=size.decision_rate, duration_s=size.decision_s
        )
        took = _some(found.took_s)
        kind = f"admission decision at {size.decision_rate:g}/s{which}"
        measured += [
            Measure(f"{kind}, p50", took.p50 * 1_000, "ms", ("<=", 0.5)),
            Measure(f"{kind}, p99", took.p99 * 1_000, "ms", ("<=", 2)),
            Measure(f"{kind}, not made", found.failed, "", ("<=", 0)),
            Measure(f"{kind}, processor time with start and settlement", found.cpu_s * 1e6, "us"),
        ]
    return measured


def _some(found: Spread | None) -> Spread:
    if found is None:
        raise BenchError("nothing succeeded")
    return found
