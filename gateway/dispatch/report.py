"""The fleet as an operator sees it: workers with their state and load, queues, and pools with an open circuit.

Pure: what this gateway knows at one moment, as plain values. Contains no tenant's name and nothing of a request.
"""

import msgspec

from gateway.dispatch.fleet import FleetView
from gateway.dispatch.overload import Overload
from shared import wire


class WorkerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A number is None where the worker does not report it."""

    worker: str
    pool: str
    model: str
    state: str
    running: int
    waiting: int
    places: int | None = None
    kv_free: float  # share of the blocks
    prompt_tokens_left: int | None = None
    prompt_tokens_per_s: float | None = None
    step_ms: float | None = None
    output_tokens_mean: float | None = None


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that no worker has accepted yet, over all gateways."""

    pool: str
    tier: int
    requests: int
    sequences: int
    prompt_tokens: int
    tenants: int


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    workers: tuple[WorkerRow, ...]
    queues: tuple[QueueRow, ...]
    pools_failing: tuple[str, ...]  # pools with an open circuit, which get only probes


def fleet_report(fleet: FleetView, overload: Overload, now: float) -> FleetReport:
    return FleetReport(
        workers=tuple(_worker(beat, state) for beat, state in fleet.known()),
        queues=tuple(_queue(overload, pool, tier, now) for pool, tier in overload.queues.known(now)),
        pools_failing=tuple(sorted(overload.breakers.open_pools())),
    )


def _worker(beat: wire.WorkerBeat, state: str) -> WorkerRow:
    load = beat.load
    return WorkerRow(
        worker=beat.worker,
        pool=beat.pool,
        model=beat.model,
        state=state,
        running=beat.running,
        waiting=beat.waiting,
        places=None if load is None else load.places,
        kv_free=beat.blocks_free / max(beat.blocks_total, 1),
        prompt_tokens_left=None if load is None else load.prompt_tokens_left,
        prompt_tokens_per_s=None if load is None else load.prompt_tokens_per_s or None,
        step_ms=None if load is None else load.step_s * 1_000 or None,
        output_tokens_mean=None if load is None else load.output_tokens_mean or None,
    )


def _queue(overload: Overload, pool: str, tier: int, now: float) -> QueueRow:
    tenants = overload.queues.waiting(pool, tier, now)
    work = overload.queues.total(pool, tier, now)
    return QueueRow(
        pool=pool,
        tier=tier,
        requests=int(work.requests),
        sequences=int(work.sequences),
        prompt_tokens=int(work.tokens),
        tenants=len(tenants),
    )
