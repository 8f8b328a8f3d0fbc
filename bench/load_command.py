"""`python -m bench load`: the load generator alone, against any OpenAI-compatible server."""

import os
from typing import Annotated, Literal

import uvloop
from cyclopts import Parameter, validators

from bench import load
from bench.client import Client
from bench.errors import BenchError
from bench.percentiles import Spread
from bench.report import Report
from bench.table import Cell, render
from bench.workload import Workload

Count = Annotated[int, Parameter(validator=validators.Number(gte=1))]
Positive = Annotated[float, Parameter(validator=validators.Number(gt=0))]


def run(
    base_url: str,
    model: str,
    *,
    api: Literal["chat", "completions"] = "completions",
    clients: Count = 16,
    requests: Count = 64,
    rate: Positive | None = None,
    duration: Positive = 30.0,
    prompt_tokens: Count = 200,
    output_tokens: Count = 128,
    stream: bool = True,
    seed: int = 1,
) -> None:
    """Send requests and print what came back. The key is OPENAI_API_KEY.

    Parameters
    ----------
    base_url
        With /v1 at its end.
    model
        As the server calls it.
    api
        Which endpoint.
    clients
        Closed loop: how many send at the same time, each its next request when the last has ended.
    requests
        Closed loop: how many they send in all.
    rate
        Open loop instead: arrivals a second on average, whatever becomes of those before.
    duration
        Open loop: for how many seconds.
    prompt_tokens
        Words in a prompt; each is one token for most models of English.
    output_tokens
        At most; exactly so where the server knows ignore_eos.
    stream
        Server-sent events, or one answer.
    seed
        The same seed sends the same prompts.
    """
    workload = Workload(
        model=model, api=api, prompt_tokens=prompt_tokens, output_tokens=output_tokens, stream=stream, seed=seed
    )
    report = uvloop.run(_send(base_url, workload, clients=clients, requests=requests, rate=rate, duration_s=duration))
    print(text(report))
    if not report.ok:
        raise BenchError("no request succeeded")


async def _send(
    base_url: str, workload: Workload, *, clients: int, requests: int, rate: float | None, duration_s: float
) -> Report:
    async with Client(base_url, os.environ.get("OPENAI_API_KEY")) as client:
        if rate is not None:
            return await load.poisson(client, workload, rate=rate, duration_s=duration_s)
        return await load.closed(client, workload, clients=min(clients, requests), requests=requests)


def text(report: Report) -> str:
    """Two tables: totals, and latencies in milliseconds."""
    failures = ", ".join(f"{count} {kind}" for kind, count in sorted(report.failures.items()))
    totals: list[tuple[str, Cell]] = [
        ("requests", report.requests),
        ("failures", failures or None),
        ("seconds", report.wall_s),
        ("requests/s", report.requests_per_s),
        ("output tokens/s", report.output_tokens_per_s),
        ("prompt tokens/s", report.prompt_tokens_per_s),
        ("events/s", report.events_per_s),
        ("load generator's core in use", report.client_cpu),
    ]
    spreads = {"ttft": report.ttft, "itl": report.itl, "e2e": report.e2e, "sent late": report.lag}
    latencies = [_latency(name, spread) for name, spread in spreads.items()]
    return f"{render(['what', 'value'], totals)}\n\n{render(['ms', 'p50', 'p95', 'p99'], latencies)}"


def _latency(name: str, spread: Spread | None) -> list[Cell]:
    if spread is None:
        return [name, None, None, None]
    scaled = spread.scaled(1_000)
    return [name, scaled.p50, scaled.p95, scaled.p99]
