"""Measures three times the load that a fleet can serve: who gets an answer, who a refusal, and how soon.

Against a fake engine, whose capacity is measured first. Arrivals are Poisson and from several tenants, without retries.
A refusal is a 429, 503 or 504; anything else that is not a complete answer counts as a failure.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec
import uvloop

from bench import launch, load, machine, tenant
from bench.client import Client, Outcome
from bench.errors import BenchError
from bench.measure import COLUMNS, Measure
from bench.percentiles import jain, spread
from bench.record import RESULTS, append
from bench.table import render
from bench.workload import Workload

FILE = "overload.csv"
MODEL = "SmolLM2-135M-Instruct"
TENANTS = 4
PLACES = 8  # of the worker
STEP_US = 20_000
OUTPUT_TOKENS = 16
PROMPT_TOKENS = 16
TIMES = 3  # its capacity, as a load
FIRST_TOKEN_MS_MAX = 1_000  # the tier's bound on what load may add
WAIT_MS_MAX = 3_000
REQUEST_S_MAX = 30.0
REFUSALS = {"http_429", "http_503", "http_504"}


class Size(msgspec.Struct, frozen=True, kw_only=True):
    requests: int  # for measuring the capacity
    duration_s: float


FULL = Size(requests=300, duration_s=20)
QUICK = Size(requests=100, duration_s=5)


def run(*, quick: bool = False) -> None:
    """Measure, print, record.

    Parameters
    ----------
    quick
        For a shorter time.
    """
    before = machine.provenance()
    with launch.running(runner="fake", fake_step_us=STEP_US, fake_token_us=0, sequences_max=PLACES) as stack:
        measures = uvloop.run(_measure(stack, QUICK if quick else FULL))
    print(f"\nOverload: fake engine; {machine.described(before)}\n")
    print(render(COLUMNS, [measure.cells for measure in measures]))
    append(RESULTS / FILE, [{**before, **dict(zip(COLUMNS, measure.cells, strict=True))} for measure in measures])


async def _measure(stack: launch.Stack, size: Size) -> list[Measure]:
    await tenant.bound(stack.postgres_url, first_token_ms_max=FIRST_TOKEN_MS_MAX, wait_ms_max=WAIT_MS_MAX)
    async with _clients(stack) as clients:
        capacity = await _capacity(clients[0], size.requests)
        by_tenant = await _flood(clients, TIMES * capacity, size.duration_s)
    outcomes = [outcome for one in by_tenant for outcome in one]
    answered = [outcome for outcome in outcomes if outcome.failure is None]
    refused = [outcome for outcome in outcomes if outcome.failure in REFUSALS]
    took = spread(outcome.end_s - outcome.sent_s for outcome in refused)
    ttft = spread(outcome.first_s - outcome.sent_s for outcome in answered if outcome.first_s is not None)
    if took is None or ttft is None:
        raise BenchError("there was no overload")
    latest_s = max(outcome.end_s - outcome.sent_s for outcome in refused)
    wall_s = max(outcome.end_s for outcome in answered) - min(outcome.planned_s for outcome in outcomes)
    return [
        Measure("capacity", capacity, "1/s"),
        Measure("arrivals", len(outcomes) / size.duration_s, "1/s"),
        Measure("neither answered nor refused", len(outcomes) - len(answered) - len(refused), "", ("<=", 0)),
        Measure("answers, of the capacity", len(answered) / wall_s / capacity * 100, "%", (">=", 90)),
        Measure("Jain index of the tenants' answers", jain(_answers(by_tenant)), "", (">=", 0.95)),
        Measure("refusals", len(refused), ""),
        Measure("of these, after a wait in the queue", sum(outcome.failure == "http_504" for outcome in refused), ""),
        Measure("refusal, p50", took.p50 * 1_000, "ms"),
        Measure("refusal, p99", took.p99 * 1_000, "ms", ("<=", 100)),
        Measure("refusal, latest", latest_s * 1_000, "ms", ("<=", WAIT_MS_MAX)),
        Measure("first token of an answer, p50", ttft.p50 * 1_000, "ms"),
        Measure("first token of an answer, p99", ttft.p99 * 1_000, "ms"),
    ]


def _answers(by_tenant: list[list[Outcome]]) -> list[int]:
    return [sum(outcome.failure is None for outcome in outcomes) for outcomes in by_tenant]


@contextlib.asynccontextmanager
async def _clients(stack: launch.Stack) -> AsyncGenerator[list[Client]]:
    """One for each tenant."""
    async with contextlib.AsyncExitStack() as entered:
        tenants = [await entered.enter_async_context(tenant.create(stack.postgres_url)) for _ in range(TENANTS)]
        yield [
            await entered.enter_async_context(Client(stack.base_url, one.key, timeout_s=REQUEST_S_MAX))
            for one in tenants
        ]


async def _capacity(client: Client, requests: int) -> float:
    """Requests/s with every place taken and no request waiting for long."""
    report = await load.closed(client, _workload(0), clients=2 * PLACES, requests=requests)
    if report.failures:
        raise BenchError(f"requests failed: {report.failures}")
    return report.requests_per_s


async def _flood(clients: list[Client], rate: float, duration_s: float) -> list[list[Outcome]]:
    """The outcomes of each tenant's requests."""
    async with asyncio.TaskGroup() as group:
        loads = [
            group.create_task(load.sent(client, _workload(1 + i), rate=rate / len(clients), duration_s=duration_s))
            for i, client in enumerate(clients)
        ]
    return [one.result() for one in loads]


def _workload(seed: int) -> Workload:
    return Workload(
        model=MODEL, api="chat", prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, stream=True, seed=seed
    )
