"""The attempts that this worker holds, from the claim until their end has been sent.

Owns the sequence numbers of sent items, and the counts for bills and rolls. Pure; times are passed in. Invariant: `seq`
of an attempt grows by one with each item that is sent for it.
"""

from dataclasses import dataclass, field

from shared import traceparent, wire
from shared.traceparent import Context
from worker.engine.results import ChoiceChunk, RequestTotals, TokenLogprob

NOTHING = RequestTotals(prompt_tokens=0, cached_tokens=0, completion_tokens=0)


@dataclass(slots=True, frozen=True)
class Failure:
    """Why this worker ends an attempt early."""

    code: str  # a stable code: `wire.End.error`
    message: str  # one sentence for the client


@dataclass(slots=True, frozen=True)
class Ending:
    """How an attempt ends: the content of its bill and its End."""

    outcome: wire.Outcome
    totals: RequestTotals
    error: str | None = None
    message: str | None = None


@dataclass(slots=True, eq=False)
class Attempt:
    """`key` is the engine's request id. Times are monotonic seconds."""

    job: wire.Job
    key: str
    claimed_at: float
    trace: Context | None = None  # the span that the job is a part of
    seq: int = 0
    tokens: int = 0
    started_at: float | None = None  # when the engine began to compute it
    first_token_at: float | None = None
    finishes: set[str] = field(default_factory=set[str])
    cancelled: wire.CancelReason | None = None
    failure: Failure | None = None  # why this worker aborted it
    ending: bool = False  # its bill is being sent, and then its end

    @property
    def trace_id(self) -> str | None:
        return None if self.trace is None else self.trace.trace

    @property
    def prompt_tokens(self) -> int:
        return self.job.prompt_tokens

    @property
    def sequences(self) -> int:
        return self.job.choices

    def chunk(self, chunk: ChoiceChunk, now: float) -> wire.Chunk:
        """The engine's chunk as the next item of this attempt."""
        ids = wire.pack_ids(chunk.ids)
        logprobs = None if chunk.logprobs is None else tuple(_on_wire(entry) for entry in chunk.logprobs)
        self.seq += 1  # after everything that may fail, so that an item that is not sent leaves no hole
        self.tokens += len(chunk.ids)
        if self.first_token_at is None:
            self.first_token_at = now
        if chunk.finish is not None:
            self.finishes.add(chunk.finish)
        return wire.Chunk(
            request=self.job.request,
            attempt=self.job.attempt,
            seq=self.seq,
            choice=chunk.choice,
            ids=ids,
            text=chunk.text,
            finish=chunk.finish,
            logprobs=logprobs,
        )

    def roll_entry(self) -> wire.RollEntry:
        """What has been sent for it so far."""
        return wire.RollEntry(request=self.job.request, attempt=self.job.attempt, seq=self.seq, tokens=self.tokens)

    def end(self, ending: Ending) -> wire.End:
        """The last item. It is made when it is sent, not before: a roll must not count what was not sent."""
        self.seq += 1
        totals = ending.totals
        return wire.End(
            request=self.job.request,
            attempt=self.job.attempt,
            seq=self.seq,
            outcome=ending.outcome,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            completion_tokens=totals.completion_tokens,
            error=ending.error,
            message=ending.message,
        )

    def bill(self, ending: Ending, *, worker: str, now: float) -> wire.UsageEvent:
        """The usage event of this attempt. Its time to first token runs from the claim."""
        job = self.job
        totals = ending.totals
        ttft_s = None if self.first_token_at is None else self.first_token_at - self.claimed_at
        return wire.UsageEvent(
            request=job.request,
            attempt=job.attempt,
            final=True,
            tenant=job.tenant,
            key=job.key,
            model=job.model,
            tier=job.tier,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            completion_tokens=totals.completion_tokens,
            recomputed_tokens=totals.recomputed_tokens,
            finish=self._finish(ending.outcome),
            ttft_ms=None if ttft_s is None else round(ttft_s * 1000),
            total_ms=round((now - self.claimed_at) * 1000),
            worker=worker,
            gateway=job.gateway,
            preemptions=totals.preemptions,
        )

    def _finish(self, outcome: wire.Outcome) -> str:
        if outcome != "finished":
            return outcome
        return "mixed" if len(self.finishes) > 1 else next(iter(self.finishes))


def _on_wire(entry: TokenLogprob) -> wire.TokenLogprob:
    return wire.TokenLogprob(id=entry.id, logprob=entry.logprob, text=entry.text, top=entry.top)


def key_of(request: str, attempt: int) -> str:
    return f"{request}:{attempt}"


class Attempts:
    """All held attempts, by key and by gateway."""

    def __init__(self) -> None:
        self._by_key: dict[str, Attempt] = {}
        self._by_gateway: dict[str, dict[str, Attempt]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def add(self, job: wire.Job, now: float) -> Attempt:
        trace = traceparent.parse([job.traceparent], [job.tracestate])
        attempt = Attempt(job, key_of(job.request, job.attempt), now, trace)
        assert attempt.key not in self._by_key, "an attempt is held once"
        self._by_key[attempt.key] = attempt
        self._by_gateway.setdefault(job.gateway, {})[attempt.key] = attempt
        return attempt

    def get(self, key: str) -> Attempt | None:
        return self._by_key.get(key)

    def has(self, job: wire.Job) -> bool:
        return key_of(job.request, job.attempt) in self._by_key

    def remove(self, attempt: Attempt) -> None:
        del self._by_key[attempt.key]
        of_gateway = self._by_gateway[attempt.job.gateway]
        del of_gateway[attempt.key]
        if not of_gateway:
            del self._by_gateway[attempt.job.gateway]

    def prompt_tokens_left(self) -> int:
        """The prompt tokens of attempts that have no output token yet."""
        return sum(attempt.prompt_tokens for attempt in self._by_key.values() if attempt.first_token_at is None)

    def all(self) -> list[Attempt]:
        return list(self._by_key.values())

    def gateways(self) -> list[str]:
        return list(self._by_gateway)

    def of_gateway(self, gateway: str) -> list[Attempt]:
        return list(self._by_gateway.get(gateway, {}).values())

    def roll(self, gateway: str) -> wire.Roll:
        return wire.Roll(entries=tuple(attempt.roll_entry() for attempt in self.of_gateway(gateway)))
