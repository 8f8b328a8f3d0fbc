"""Jobs and what workers say about them, for tests without NATS."""

from gateway.dispatch.attempt import Attempt
from shared import wire


def job(request: str = "r1", *, attempt: int = 1, n: int = 1, card: str = "card") -> wire.Job:
    return wire.Job(
        request=request,
        attempt=attempt,
        gateway="gw",
        tenant="tenant",
        key="key",
        model="model",
        card=card,
        tier=0,
        prompts=(wire.pack_ids([1, 2, 3]),),
        n=n,
        sampling=wire.Sampling(max_tokens=100),
        cache_salt=b"",
        wait_ms=1000,
        run_ms=1000,
    )


def attempt(request: str = "r1", *, n: int = 1, reader_bytes_max: int = 1_000_000) -> Attempt:
    return Attempt(job(request, n=n), "default", now=0.0, reader_bytes_max=reader_bytes_max)


def accepted(request: str = "r1", number: int = 1) -> wire.Accepted:
    return wire.Accepted(request=request, attempt=number)


def chunk(
    seq: int, request: str = "r1", *, choice: int = 0, text: str = "", number: int = 1, **more: object
) -> wire.Chunk:
    return wire.Chunk(
        request=request,
        attempt=number,
        seq=seq,
        choice=choice,
        ids=wire.pack_ids([seq]),
        text=text or f"<{seq}>",
        **more,  # pyright: ignore[reportArgumentType]
    )


def end(seq: int, request: str = "r1", *, outcome: wire.Outcome = "finished", error: str | None = None) -> wire.End:
    return wire.End(
        request=request,
        attempt=1,
        seq=seq,
        outcome=outcome,
        prompt_tokens=3,
        cached_tokens=0,
        completion_tokens=seq - 1,
        error=error,
    )


def entry(seq: int, request: str = "r1", number: int = 1) -> wire.RollEntry:
    return wire.RollEntry(request=request, attempt=number, seq=seq, tokens=seq)


def roll(*entries: wire.RollEntry) -> wire.Roll:
    return wire.Roll(entries=entries)


def frame(*items: wire.Accepted | wire.Chunk | wire.End | wire.Roll, worker: str = "w1") -> wire.Frame:
    return wire.Frame(worker=worker, items=items)


def beat(
    worker: str = "w1",
    *,
    model: str = "m",
    card: str = "card",
    pool: str = "default",
    ready: bool = True,
    draining: bool = False,
    healthy: bool = True,
    load: wire.WorkerLoad | None = None,
) -> wire.WorkerBeat:
    return wire.WorkerBeat(
        worker=worker,
        incarnation="i",
        pool=pool,
        model=model,
        card=card,
        ready=ready,
        draining=draining,
        running=0,
        waiting=0,
        blocks_free=1,
        blocks_total=1,
        step_age_ms=0,
        healthy=healthy,
        load=load,
    )
