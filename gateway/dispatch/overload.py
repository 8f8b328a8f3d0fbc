"""Overload control: whether a request is admitted under the present load, and the refusal and retry delay if not.

Owns what this gateway knows of load and faults; its neighbours do the arithmetic. Does no I/O; times are passed in.
Invariant: nothing is refused because something is unknown.
"""

from collections.abc import Callable
from typing import Final

from gateway.dispatch.breaker import Breakers
from gateway.dispatch.fleet import FleetView
from gateway.dispatch.forecast import Forecast, forecast
from gateway.dispatch.queues import NOTHING, Queues, work_of
from gateway.dispatch.retries import RetryBudget
from gateway.dispatch.terms import Terms
from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, Unavailable
from shared import wire

RETRY_S_MIN: Final = 0.25
RETRY_S_MAX: Final = 60.0  # official clients take longer ones for a mistake
RETRY_S_UNKNOWN: Final = 1.0  # where nothing is measured
SPREAD: Final = 0.25  # at random, so that those who were refused together do not come back together

OVERLOADED: Final = "The service is overloaded: this request would have to wait for too long."
TENANT_BEHIND: Final = "Too many of your requests are waiting already."


class Overload:
    """`random` draws from [0, 1)."""

    def __init__(self, fleet: FleetView, *, random: Callable[[], float]) -> None:
        self._fleet = fleet
        self._random = random
        self.queues = Queues()
        self.breakers = Breakers()
        self.retries = RetryBudget()

    def check(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        """Before a job is published; it is in `queues` only after that. Raises QueueFull, Unavailable."""
        self.check_load(job, pool, terms, now)
        self._check_faults(job, pool, terms, now)  # last: who passes may be a probe, or have cost a retry

    def check_load(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        """That part of `check` which costs nothing when asked again. Raises QueueFull, Unavailable."""
        self._check_bounds(job, pool, terms, now)
        self._check_forecast(job, pool, terms, now)

    def late(self, job: wire.Job, pool: str, terms: Terms, now: float) -> GatewayError:
        """For a job that has waited as long as it may, and still counts as waiting."""
        advice = self.advice_ms(job, pool, terms, now)
        if self._tenant_behind(job, pool, terms, now, itself=1):
            return QueueFull(TENANT_BEHIND, retry_after_ms=advice)
        return DeadlineExceeded("No worker could start this request in time.", retry_after_ms=advice)

    def advice_ms(self, job: wire.Job, pool: str, terms: Terms, now: float) -> int:
        """When to come back with a job that found its queue full."""
        return self._advice_ms(self.forecast(job, pool, now), terms)

    def forecast(self, job: wire.Job, pool: str, now: float, *, alone: bool = False) -> Forecast | None:
        """`alone`: as if its tenant had nothing else waiting."""
        members = self._fleet.members(job.card, pool)
        ahead = self.queues.ahead(job, pool, now, alone=alone)
        return forecast(members, tier=job.tier, ahead=ahead, own=work_of(job))

    def _check_faults(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        wait_s = self.breakers.refused_s(pool, job.tenant, now)
        if wait_s:
            message = "Requests to this model have been failing. Please retry shortly."
            raise Unavailable(message, retry_after_ms=self._milliseconds(wait_s))
        if not self.retries.passes(job.tenant, now, retry=terms.retry):
            message = "Too many retries of failed requests; they would only add to the trouble."
            raise QueueFull(message, retry_after_ms=self._milliseconds(RETRY_S_UNKNOWN), retry=False)

    def _check_bounds(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        if terms.queued_requests_max is None and terms.queued_tokens_max is None:
            return
        work = self.queues.total(pool, job.tier, now) + work_of(job)
        if _above(work.requests, terms.queued_requests_max) or _above(work.tokens, terms.queued_tokens_max):
            advice = self.advice_ms(job, pool, terms, now)
            raise QueueFull("The queue of your service tier is full.", retry_after_ms=advice)

    def _check_forecast(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        found = self.forecast(job, pool, now)
        if found is None or not excess_s(found, terms):
            return
        advice = self._advice_ms(found, terms)
        if self._tenant_behind(job, pool, terms, now):
            raise QueueFull(TENANT_BEHIND, retry_after_ms=advice)
        hopeless = terms.client_s is not None and found.own_s > terms.client_s
        raise Unavailable(OVERLOADED, retry_after_ms=advice, retry=not hopeless)

    def _tenant_behind(self, job: wire.Job, pool: str, terms: Terms, now: float, *, itself: int = 0) -> bool:
        """Whether it is what its own tenant has waiting, besides itself, that keeps the job from being in time."""
        if self.queues.waiting(pool, job.tier, now).get(job.tenant, NOTHING).requests <= itself:
            return False
        found = self.forecast(job, pool, now, alone=True)
        return found is not None and not excess_s(found, terms)

    def _advice_ms(self, found: Forecast | None, terms: Terms) -> int:
        """When this request would be let in, if nobody else came: what waits shrinks by a second a second."""
        return self._milliseconds(RETRY_S_UNKNOWN if found is None else excess_s(found, terms))

    def _milliseconds(self, seconds: float) -> int:
        spread = max(seconds, RETRY_S_MIN) * (1 + SPREAD * self._random())
        return round(min(spread, RETRY_S_MAX) * 1_000)


def excess_s(found: Forecast, terms: Terms) -> float:
    """By how much the forecast is beyond what the terms allow; 0 if it is not."""
    most_s = terms.wait_s if terms.added_s is None else min(terms.added_s, terms.wait_s)
    late_s = found.added_s - most_s
    if terms.client_s is not None:
        late_s = max(late_s, found.first_token_s - terms.client_s)
    return max(late_s, 0.0)


def _above(amount: float, bound: int | None) -> bool:
    return bound is not None and amount > bound
