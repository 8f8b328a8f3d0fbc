"""The whole product with the real model, over HTTP: output tokens/s and latencies at rising concurrency, prefill speed,
time to ready after a warm start, resident memory, and the same of every other server that is installed (`bench.peers`).

The load is the one that other servers are compared by: prompts of 200 tokens, 128 output tokens, greedy, no early end.
"""

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import uvloop

from bench import launch, load, machine, peers
from bench.client import Client
from bench.errors import BenchError
from bench.percentiles import Spread
from bench.record import RESULTS, Row, append
from bench.report import Report
from bench.table import Cell, render
from bench.workload import Workload

PROMPT_TOKENS = 200
OUTPUT_TOKENS = 128
ROUNDS, ROUNDS_QUICK = 3, 1  # requests per client
WARM_REQUESTS, WARM_TOKENS = 4, 16
PREFILL_TOKENS = 1_024
PREFILL_REQUESTS, PREFILL_REQUESTS_QUICK = 5, 1
ARRIVALS_S, ARRIVALS_QUICK_S = 30.0, 10.0  # how long prompts arrive while others are answered,
ARRIVALS_SHARE = 0.5  # at this share of the rate that the server sustained
FILE = "stack.csv"
MODEL = "SmolLM2-135M-Instruct"
OURS = "forebay"

DtypeName = Literal["auto", "fp32", "bf16"]
WeightsMode = Literal["auto", "fp32", "bf16", "int8", "int4"]


def run(
    *,
    quick: bool = False,
    dtype: DtypeName = "auto",
    weights: WeightsMode = "auto",
    concurrency: tuple[int, ...] = (1, 4, 16, 32),
) -> None:
    """Measure, print, record. Ends with status 1 when a request failed, after recording that it did.

    Parameters
    ----------
    quick
        One request of each client instead of three.
    dtype
        The type of the worker's activations.
    weights
        How the worker keeps weights.
    concurrency
        How many clients, one level after the other.
    """
    before: dict[str, Cell] = {**machine.provenance(), "dtype": _resolved(dtype, weights), "weights": weights}
    measured: dict[str, Measured] = {}
    with launch.running(warm=True, runner="torch", dtype=dtype, weights=weights) as stack:
        ours = uvloop.run(_measure(stack.base_url, stack.key, concurrency, quick=quick))
        ours.whole = {
            "ready_s": stack.ready_s,
            "up_s": stack.up_s,
            "worker_mib": stack.resident_mib(launch.WORKER),
            "gateway_mib": stack.resident_mib(launch.GATEWAY),
        }
        measured[OURS] = ours
    measured |= _peers(concurrency, quick=quick)
    print(_text(before, measured))
    append(RESULTS / FILE, [row for server, found in measured.items() for row in _rows(before, server, found)])
    if failures := [f"{server}: {found.failures}" for server, found in measured.items() if found.failures]:
        raise BenchError(f"requests failed: {failures}")


@dataclass(slots=True)
class Measured:
    """One server."""

    levels: dict[int, Report]  # by the number of clients
    long: Report  # long prompts, one at a time, with one token of output
    arriving: Report  # an open loop
    whole: dict[str, Cell] = field(default_factory=dict[str, Cell])

    @property
    def failures(self) -> list[dict[str, int]]:
        return [report.failures for report in (*self.levels.values(), self.long, self.arriving) if report.failures]

    @property
    def prefill_tokens_per_s(self) -> float | None:
        return None if self.long.ttft is None else PREFILL_TOKENS / self.long.ttft.p50

    @property
    def gap_ratio(self) -> float | None:
        """p99 over median of the time between tokens while prompts arrive."""
        return None if self.arriving.itl is None else self.arriving.itl.p99 / self.arriving.itl.p50


def _peers(concurrency: tuple[int, ...], *, quick: bool) -> dict[str, Measured]:
    measured: dict[str, Measured] = {}
    with tempfile.TemporaryDirectory(prefix="forebay-peers-") as name:
        folder = Path(name, "model")
        folder.mkdir()
        for peer in peers.found(folder, MODEL, os.cpu_count() or 1):
            try:
                with peers.running(peer, Path(name, "log")) as running:
                    found = uvloop.run(_measure(running.base_url, None, concurrency, quick=quick))
                    found.whole = {"ready_s": running.ready_s, "worker_mib": running.resident_mib}
            except BenchError as error:
                print(f"bench: not measured: {error}")  # our own figures are printed all the same
            else:
                measured[peer.name] = found
    return measured


async def _measure(base_url: str, key: str | None, concurrency: tuple[int, ...], *, quick: bool) -> Measured:
    levels: dict[int, Report] = {}
    async with Client(base_url, key) as client:
        for clients in concurrency:
            await load.closed(client, _workload(clients, WARM_TOKENS, warm=True), clients=1, requests=WARM_REQUESTS)
            requests = clients * (ROUNDS_QUICK if quick else ROUNDS)
            levels[clients] = await load.closed(
                client, _workload(clients, OUTPUT_TOKENS), clients=clients, requests=requests
            )
        prefill = Workload(model=MODEL, api="completions", prompt_tokens=PREFILL_TOKENS, output_tokens=1)
        requests = PREFILL_REQUESTS_QUICK if quick else PREFILL_REQUESTS
        long = await load.closed(client, prefill, clients=1, requests=requests)
        rate = ARRIVALS_SHARE * max(report.output_tokens_per_s for report in levels.values()) / OUTPUT_TOKENS
        seconds = ARRIVALS_QUICK_S if quick else ARRIVALS_S
        arriving = await load.poisson(client, _workload(0, OUTPUT_TOKENS), rate=rate, duration_s=seconds)
    return Measured(levels, long, arriving)


def _workload(clients: int, output_tokens: int, *, warm: bool = False) -> Workload:
    """Prompts of its own for each level: nothing that one level left behind helps the next."""
    seed = 1_000 * clients + warm
    return Workload(model=MODEL, api="completions", prompt_tokens=PROMPT_TOKENS, output_tokens=output_tokens, seed=seed)


def _resolved(dtype: DtypeName, weights: WeightsMode) -> str:
    """The type of activations when the worker is told this on this machine; the demo model is kept in codes."""
    import torch  # noqa: PLC0415 - seconds, and only here

    from worker.models.load import resolve_dtype  # noqa: PLC0415

    return {torch.float32: "fp32", torch.bfloat16: "bf16"}[
        resolve_dtype(dtype, torch.device("cpu"), weights, codes=True)
    ]


def _rows(before: Row, server: str, measured: Measured) -> list[Row]:
    whole: dict[str, Cell] = {
        "prefill_tokens_per_s": measured.prefill_tokens_per_s,
        "arriving_itl_p99_over_p50": measured.gap_ratio,
        **measured.whole,
    }
    return [{**before, "server": server, **_row(n, report), **whole} for n, report in measured.levels.items()]


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


def _text(before: Row, measured: dict[str, Measured]) -> str:
    title = (
        f"Stack: {MODEL}, {before['dtype']}, weights {before['weights']}, prompts of {PROMPT_TOKENS} tokens, "
        f"{OUTPUT_TOKENS} output tokens; {machine.described(before)}"
    )
    tables = [f"{server}\n\n{_table(found)}" for server, found in measured.items()]
    ratios = [
        render(["forebay / " + server, "ratio"], _ratios(measured[OURS], found))
        for server, found in measured.items()
        if server != OURS
    ]
    return "\n\n".join(["", title, *tables, *ratios]).removeprefix("\n")


def _table(measured: Measured) -> str:
    columns = ["clients", "requests", "failed", "tokens/s"]
    columns += [f"{what} {part}" for what in ("ttft ms", "itl ms", "e2e s") for part in ("p50", "p95", "p99")]
    rows: list[list[Cell]] = []
    for clients, report in measured.levels.items():
        row = _row(clients, report)
        latencies = [value for name, value in row.items() if "_p50_" in name or "_p95_" in name or "_p99_" in name]
        rows.append([clients, report.requests, row["failures"], report.output_tokens_per_s, *latencies])
    whole: Row = {
        "prefill tokens/s": measured.prefill_tokens_per_s,
        "arriving itl p99 / p50": measured.gap_ratio,
        **measured.whole,
    }
    return f"{render(columns, rows)}\n\n{render(list(whole), [list(whole.values())])}"


def _ratios(ours: Measured, peer: Measured) -> list[list[Cell]]:
    rows: list[list[Cell]] = [
        [f"tokens/s, {clients} clients", _over(report.output_tokens_per_s, peer.levels[clients].output_tokens_per_s)]
        for clients, report in ours.levels.items()
    ]
    rows.append(["prefill tokens/s", _over(ours.prefill_tokens_per_s, peer.prefill_tokens_per_s)])
    return rows


def _over(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None
