"""The custody of claimed jobs: each goes into the engine, its output goes out, then its bill, then its end.

Owns the path from the engine's reports to what is sent. Knows no subject and no queue. Invariant: every claimed attempt
ends with one `End`, sent after its usage event is durable (or was tried for long enough); one that was cancelled as a
duplicate has no usage event. An error of one request ends that request and no other.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVarTuple

from shared import log, wire
from shared.clock import Clock
from shared.trace import Tracer
from shared.usage import UsagePublisher
from worker.engine.engine import Engine
from worker.engine.errors import DoesNotFit, EngineError, InvalidRequest
from worker.engine.request import EngineRequest, SamplingParams
from worker.engine.results import ChoiceChunk, EngineStats, StepResult
from worker.engine.runner import RunnerBroken
from worker.link.attempts import NOTHING, Attempt, Attempts, Ending, Failure, key_of
from worker.link.bill_counts import BillCounts
from worker.link.engine_thread import EngineThread, Report
from worker.link.limits import LinkLimits
from worker.link.outbox import Outbox
from worker.link.room import Room
from worker.link.spans import spans
from worker.link.speed import Speed

Ts = TypeVarTuple("Ts")

LEAVING = Failure("shutdown", "The worker is shutting down.")
FAULT = Failure("engine_error", "The worker failed while it processed this request.")


class Custody:
    """`room_changed` is called when something may be claimed again."""

    def __init__(
        self,
        *,
        worker: str,
        pool: str,
        engine: Engine,
        room: Room,
        speed: Speed,
        outbox: Outbox,
        usage: UsagePublisher,
        room_changed: Callable[[], None],
        limits: LinkLimits,
        clock: Clock,
        tracer: Tracer,
    ) -> None:
        self._worker = worker
        self._pool = pool
        self._tokens_max = engine.tokens_max
        self._room = room
        self._outbox = outbox
        self._usage = usage
        self._room_changed = room_changed
        self._limits = limits
        self._clock = clock
        self._tracer = tracer
        self._log = log.get("custody")
        self._empty = asyncio.Event()
        self._empty.set()
        self.attempts = Attempts()
        self.stats: EngineStats = engine.stats()
        self.thread = EngineThread(engine, self.on_report, reports_max=limits.reports_max)
        self.speed = speed
        self.wasted_tokens_total = 0
        self.bill_counts = BillCounts()
        self.on_step: Callable[[float], None] = lambda _: None
        self.on_bill: Callable[[wire.UsageEvent], None] = lambda _: None
        self.on_broken: Callable[[RunnerBroken], None] = lambda _: None

    # -- in

    def claimed(self, job: wire.Job) -> None:
        """Take over a job that has left its queue, and that was promised its room."""
        if self.attempts.has(job):
            self._room.withdraw(key_of(job.request, job.attempt))
            return  # published twice and claimed twice by us: one of them is enough
        attempt = self.attempts.add(job, self._clock.monotonic())
        self._empty.clear()
        self._outbox.add(job.gateway, wire.Accepted(request=job.request, attempt=job.attempt))
        try:
            request = _engine_request(attempt.key, job)
            _check_fits(request, self._tokens_max)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._room.withdraw(attempt.key)
            self._refuse(attempt, error)
            return
        self.thread.add(request)

    def cancel(self, cancel: wire.Cancel) -> None:
        """Idempotent; unknown ids are ignored."""
        attempt = self.attempts.get(key_of(cancel.request, cancel.attempt))
        if attempt is not None:
            self._abort(attempt, cancel.reason)

    def abort_gateway(self, gateway: str) -> None:
        """Abort all attempts of a silent gateway: nobody reads their output."""
        for attempt in self.attempts.of_gateway(gateway):
            self._abort(attempt, "client")

    def abort_all(self) -> None:
        """Abort everything: this worker is stopping and can wait no longer."""
        for attempt in self.attempts.all():
            if attempt.cancelled is None:
                attempt.failure = attempt.failure or LEAVING
            self._abort(attempt, "shutdown")

    def abort_overdue(self) -> None:
        """Attempts whose gateway should have stopped them long ago."""
        now = self._clock.monotonic()
        for attempt in self.attempts.all():
            if now - attempt.claimed_at > attempt.job.run_ms / 1000 + self._limits.run_slack_s:
                self._abort(attempt, "deadline")

    async def wait_empty(self, timeout_s: float) -> bool:
        """Whether everything held has ended within `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    def _abort(self, attempt: Attempt, reason: wire.CancelReason) -> None:
        if attempt.cancelled is None and not attempt.ending:
            attempt.cancelled = reason
            self.thread.abort(attempt.key)

    # -- out

    def on_report(self, report: Report) -> None:
        now = self._clock.monotonic()
        self.stats = report.stats
        self._room.reported(report.stats, [*report.added, *(key for key, _ in report.refused)])
        for key, error in report.refused:
            self._guarded(key, self._refuse, error)
        for key, totals in report.aborted:
            self._guarded(key, self._end, Ending("cancelled", totals))
        if report.step is not None:
            self.on_step(report.step_s)
            self.speed.stepped(report.step_s, tokens=report.step.tokens, sampled=len(report.step.chunks))
            self._on_step(report.step, now, report.step_s)
        self._room_changed()

    def _on_step(self, step: StepResult, now: float, step_s: float) -> None:
        if step.failure is not None:
            self._log.error("step.failed", exc_info=step.failure)
        if step.broken is not None:
            self.on_broken(step.broken)
        for key in step.started:
            attempt = self.attempts.get(key)
            if attempt is not None:
                attempt.started_at = max(attempt.claimed_at, now - step_s)
        for chunk in step.chunks:
            self._guarded(chunk.request, self._send_chunk, chunk, now)
        for done in step.done:
            attempt = self.attempts.get(done.request)
            if attempt is not None and done.error is None:
                self.speed.finished(done.totals, sequences=attempt.sequences)
            outcome: wire.Outcome = "finished" if done.error is None else "error"
            self._guarded(done.request, self._end, Ending(outcome, done.totals, done.error, done.message))

    def _guarded(self, key: str, work: Callable[[Attempt, *Ts], None], *args: *Ts) -> None:
        """Do `work` for an attempt, if it is still held; an error of it ends that attempt alone."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return
        try:
            work(attempt, *args)
        except Exception as error:  # noqa: BLE001 - see the module's docstring
            self._log.error("request.failed", request=attempt.job.request, trace=attempt.trace_id, exc_info=error)
            if attempt.ending:
                self._let_go(attempt)  # not even its end can be told: that the next roll leaves it out tells
            else:
                attempt.failure = FAULT
                self.thread.abort(key)

    def _send_chunk(self, attempt: Attempt, chunk: ChoiceChunk, now: float) -> None:
        if attempt.cancelled is None and attempt.failure is None and not attempt.ending:
            self._outbox.add(attempt.job.gateway, attempt.chunk(chunk, now))

    def _refuse(self, attempt: Attempt, error: Exception) -> None:
        if isinstance(error, DoesNotFit):
            failure = Failure("does_not_fit", str(error))
        elif isinstance(error, (EngineError, ValueError)):
            failure = Failure("invalid_request", str(error))
        else:
            self._log.error("request.failed", request=attempt.job.request, trace=attempt.trace_id, exc_info=error)
            failure = FAULT
        self._end(attempt, Ending("error", NOTHING, failure.code, failure.message))

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        if attempt.ending:
            return
        attempt.ending = True
        if attempt.failure is not None and attempt.cancelled != "duplicate":
            ending = Ending("error", ending.totals, attempt.failure.code, attempt.failure.message)
        elif attempt.cancelled is not None:
            ending = Ending("cancelled", ending.totals)
        if attempt.cancelled == "duplicate":
            self.wasted_tokens_total += ending.totals.completion_tokens
            self._send_end(attempt, ending)
            return
        event = attempt.bill(ending, worker=self._worker, now=self._clock.monotonic())
        self.on_bill(event)
        self.bill_counts.add(event)
        if ending.totals is NOTHING:
            self._usage.submit(event, trace=attempt.trace_id)
            self._send_end(attempt, ending)
        else:
            then = partial(self._end_after_bill, attempt.key, ending)
            self._usage.submit_then(event, then, self._limits.bill_timeout_s, trace=attempt.trace_id)

    def _end_after_bill(self, key: str, ending: Ending, durable: bool) -> None:
        self._guarded(key, self._end_billed, ending, durable)

    def _end_billed(self, attempt: Attempt, ending: Ending, durable: bool) -> None:
        if not durable:
            self._log.warning("usage.late", request=attempt.job.request, trace=attempt.trace_id)
        self._send_end(attempt, ending)

    def _send_end(self, attempt: Attempt, ending: Ending) -> None:
        self._outbox.add(attempt.job.gateway, attempt.end(ending))
        self._let_go(attempt)
        self._tell(attempt, ending)

    def _tell(self, attempt: Attempt, ending: Ending) -> None:
        """Log how it ended, and record its spans if the trace is sampled."""
        now, totals = self._clock.monotonic(), ending.totals
        self._log.info(
            "attempt.ended",
            request=attempt.job.request,
            attempt=attempt.job.attempt,
            trace=attempt.trace_id,
            tenant=attempt.job.tenant,
            outcome=ending.outcome,
            error=ending.error,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            completion_tokens=totals.completion_tokens,
            preemptions=totals.preemptions,
            recomputed_tokens=totals.recomputed_tokens,
            total_ms=round((now - attempt.claimed_at) * 1000),
        )
        if attempt.trace is not None and attempt.trace.sampled:
            self._tracer.record(spans(attempt, ending, pool=self._pool, worker=self._worker, now=now))

    def _let_go(self, attempt: Attempt) -> None:
        self.attempts.remove(attempt)
        if not len(self.attempts):
            self._empty.set()


def _check_fits(request: EngineRequest, tokens_max: int) -> None:
    """Raises DoesNotFit. Found here rather than by the engine, so that the refusal goes out with the acceptance and can
    still become an HTTP status.
    """
    longest = max(len(prompt) for prompt in request.prompts)
    if longest >= tokens_max:
        raise DoesNotFit(f"The prompt has {longest} tokens; the worker holds {tokens_max}, prompt and output together.")


def _engine_request(key: str, job: wire.Job) -> EngineRequest:
    """Raises ValueError for ids that are not whole, InvalidRequest for a job without a prompt."""
    sampling = job.sampling
    if not job.prompts or not all(job.prompts):
        raise InvalidRequest("A prompt must have at least one token.")
    return EngineRequest(
        id=key,
        prompts=tuple(wire.unpack_ids(prompt) for prompt in job.prompts),
        n=job.n,
        sampling=SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=sampling.seed,
            stop=sampling.stop,
            ignore_eos=sampling.ignore_eos,
            logit_bias=sampling.logit_bias,
            logprobs=sampling.logprobs,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            repetition_penalty=sampling.repetition_penalty,
            min_tokens=sampling.min_tokens,
            stop_token_ids=sampling.stop_token_ids,
        ),
        tier=job.tier,
        tenant=job.tenant,
        salt=job.cache_salt,
    )
