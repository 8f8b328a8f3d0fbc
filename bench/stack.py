"""The whole product with the real model, over HTTP: output tokens/s and latencies at rising concurrency, prefill speed,
time to ready, resident memory.

The load is the one that other servers are compared by: prompts of 200 tokens, 128 output tokens, greedy, no early end.
"""

from typing import Literal

import uvloop

from bench import launch, load, machine
from bench.client import Client
from bench.errors import BenchError
from bench.percentiles import Spread
from bench.record import RESULTS, Row, append
from bench.report import Report
from bench.table import Cell, render
from bench.workload import Workload

PROMPT_TOKENS = 200
OUTPUT_TOKENS = 128
ROUNDS, ROUNDS_QUICK = 3, 1  # requests of each client
WARM_REQUESTS, WARM_TOKENS = 4, 16
PREFILL_TOKENS = 1_024
PREFILL_REQUESTS, PREFILL_REQUESTS_QUICK = 5, 1
FILE = "stack.csv"
MODEL = "SmolLM2-135M-Instruct"


def run(
    *,
    quick: bool = False,
    dtype: Literal["auto", "fp32", "bf16"] = "auto",
    concurrency: tuple[int, ...] = (1, 4, 16, 32),
) -> None:
    """Measure, print, record. Ends with status 1 when a request failed, after recording that it did.

    Parameters
    ----------
    quick
        One request of each client instead of three.
    dtype
        What the worker multiplies in.
    concurrency
        How many clients, one level after the other.
    """
    before: dict[str, Cell] = {**machine.provenance(), "dtype": _resolved(dtype)}
    with launch.running(runner="torch", dtype=dtype) as stack:
        reports, long = uvloop.run(_measure(stack, concurrency, quick=quick))
        whole: dict[str, Cell] = {
            "prefill_tokens_per_s": None if long.ttft is None else PREFILL_TOKENS / long.ttft.p50,
            "ready_s": stack.ready_s,
            "up_s": stack.up_s,
            "worker_mib": stack.resident_mib(launch.WORKER),
            "gateway_mib": stack.resident_mib(launch.GATEWAY),
        }
    rows = [{**before, **_row(clients, report), **whole} for clients, report in reports.items()]
    print(_text(before, reports, whole))
    append(RESULTS / FILE, rows)
    if failures := [report.failures for report in (*reports.values(), long) if report.failures]:
        raise BenchError(f"requests failed: {failures}")


async def _measure(
    stack: launch.Stack, concurrency: tuple[int, ...], *, quick: bool
) -> tuple[dict[int, Report], Report]:
    """A report for each concurrency, and one of long prompts, one at a time, with one token of output."""
    reports: dict[int, Report] = {}
    async with Client(stack.base_url, stack.key) as client:
        for clients in concurrency:
            await load.closed(client, _workload(clients, WARM_TOKENS, warm=True), clients=1, requests=WARM_REQUESTS)
            requests = clients * (ROUNDS_QUICK if quick else ROUNDS)
            reports[clients] = await load.closed(
                client, _workload(clients, OUTPUT_TOKENS), clients=clients, requests=requests
            )
        prefill = Workload(model=MODEL, api="completions", prompt_tokens=PREFILL_TOKENS, output_tokens=1)
        requests = PREFILL_REQUESTS_QUICK if quick else PREFILL_REQUESTS
        long = await load.closed(client, prefill, clients=1, requests=requests)
    return reports, long


def _workload(clients: int, output_tokens: int, *, warm: bool = False) -> Workload:
    """Prompts of its own for each level: nothing that one level left behind helps the next."""
    seed = 1_000 * clients + warm
    return Workload(model=MODEL, api="completions", prompt_tokens=PROMPT_TOKENS, output_tokens=output_tokens, seed=seed)


def _resolved(dtype: str) -> str:
    """What the worker multiplies in when it is told `dtype` on this machine."""
    if dtype != "auto":
        return dtype
    import torch  # noqa: PLC0415 - seconds, and only here

    from worker.models.load import resolve_dtype  # noqa: PLC0415

    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[resolve_dtype("auto", torch.device("cpu"))]


def _row(clients: int, report: Report) -> Row:
    return {
        "concurrency": clients,
        "prompt_tokens": report.prompt_tokens // max(report.ok, 1),
        "output_tokens": report.output_tokens // max(report.ok, 1),
        "requests": report.requests,
        "failures": sum(report.failures.values()),
        "output_tokens_per_s": report.output_tokens_per_s,
        **_spread("ttft_ms", report.ttft, 1_000),
        **_spread("itl_ms", report.itl, 1_000),
        **_spread("e2e_s", report.e2e, 1),
        "client_cpu": report.client_cpu,
    }


def _spread(name: str, spread: Spread | None, factor: float) -> Row:
    base, _, unit = name.rpartition("_")
    scaled = None if spread is None else spread.scaled(factor)
    return {f"{base}_{part}_{unit}": getattr(scaled, part, None) for part in ("p50", "p95", "p99")}


def _text(before: Row, reports: dict[int, Report], whole: Row) -> str:
    columns = ["clients", "requests", "failed", "tokens/s"]
    columns += [f"{what} {part}" for what in ("ttft ms", "itl ms", "e2e s") for part in ("p50", "p95", "p99")]
    rows: list[list[Cell]] = []
    for clients, report in reports.items():
        row = _row(clients, report)
        latencies = [value for name, value in row.items() if "_p50_" in name or "_p95_" in name or "_p99_" in name]
        rows.append([clients, report.requests, row["failures"], report.output_tokens_per_s, *latencies])
    title = (
        f"Stack: {MODEL}, {before['dtype']}, prompts of {PROMPT_TOKENS} tokens, {OUTPUT_TOKENS} output tokens; "
        f"{machine.described(before)}"
    )
    return f"\n{title}\n\n{render(columns, rows)}\n\n{render(list(whole), [list(whole.values())])}"
