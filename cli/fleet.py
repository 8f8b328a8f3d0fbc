"""`forebay fleet`: the workers, what waits for them, and the pools that fail, as a gateway knows them.

Asks the administrators' API, since nothing of this is in Postgres.
"""

import os
from pathlib import Path

import msgspec

from cli import table
from cli.embedded import demo
from cli.embedded.directory import DataDirectory
from cli.embedded.settings import environment, from_environment
from cli.errors import CommandError
from cli.request import answered
from gateway.dispatch.report import FleetReport, QueueRow, WorkerRow

ANSWER_S_MAX = 20.0
PATH = "/admin/v1/fleet"


def fleet(
    *, base_url: str | None = None, key: str | None = None, data_dir: Path | None = None, json: bool = False
) -> None:
    """Show the workers with their state and load, the queues, and the pools that are left alone.

    Parameters
    ----------
    base_url
        A gateway's address, ending in /v1. [default: OPENAI_BASE_URL, else that of demo.env]
    key
        An admin key. [default: FOREBAY_ADMIN_KEY, else that of demo.env]
    data_dir
        The data directory whose demo.env is read. [default: .forebay]
    json
        As a JSON object.
    """
    settings = from_environment(environment(os.environ, {"data_dir": data_dir}))
    known = {**demo.read(DataDirectory(settings.data_path)), **os.environ}
    base_url, key = base_url or known.get("OPENAI_BASE_URL"), key or known.get("FOREBAY_ADMIN_KEY")
    if not base_url or not key:
        raise CommandError(
            "OPENAI_BASE_URL and FOREBAY_ADMIN_KEY are not set: start `forebay up`, then source its demo.env"
        )
    with answered(base_url.rstrip("/").removesuffix("/v1"), key, "GET", PATH, timeout_s=ANSWER_S_MAX) as response:
        report = msgspec.json.decode(response.read(), type=FleetReport)
    if json:
        print(msgspec.json.encode(report).decode())
        return
    table.show_rows(report.workers, ("worker", "pool", "model", "state", "load", "speed"), _worker, json=False)
    table.show_rows(report.queues, ("queue", "tier", "requests", "prompt tokens", "tenants"), _queue, json=False)
    for pool in report.pools_failing:
        print(f"the pool {pool} fails and is sent probes alone")


def _worker(row: WorkerRow) -> tuple[str, ...]:
    places = "" if row.places is None else f" of {row.places}"
    load = f"{row.running}{places} running, {row.waiting} waiting, {row.kv_free:.0%} of KV free"
    return row.worker, row.pool, row.model, row.state, load, _speed(row)


def _speed(row: WorkerRow) -> str:
    parts: list[str] = []
    if row.step_ms is not None:
        parts.append(f"{row.step_ms:.3g} ms a step")
    if row.prompt_tokens_per_s is not None:
        parts.append(f"{row.prompt_tokens_per_s:.0f} prompt tokens/s")
    if row.output_tokens_mean is not None:
        parts.append(f"{row.output_tokens_mean:.0f} tokens an answer")
    return ", ".join(parts) or "-"


def _queue(row: QueueRow) -> tuple[str, ...]:
    return row.pool, str(row.tier), f"{row.requests:,}", f"{row.prompt_tokens:,}", str(row.tenants)
