"""Overload control: whether a request is admitted under the present load, and if not, the error and retry delay.

Owns this gateway's knowledge of load and faults; its neighbours do the arithmetic. Does no I/O; times are passed in.
Invariant: nothing is refused because something is unknown.
"""

from collections.abc import Callable
from typing import Final

from gateway.dispatch.breaker import Breakers
from gateway.dispatch.fleet import FleetView
from gateway.dispatch.forecast import Forecast, forecast
from gateway.dispatch.queues import NOTHING, Queues, Work, work_of
from gateway.dispatch.retries import RetryBudget
from gateway.dispatch.terms import Terms
from gateway.errors import DeadlineExceeded, GatewayError, QueueFull, Unavailable
from shared import wire

RETRY_S_MIN: Final = 0.25
RETRY_S_MAX: Final = 60.0  # the official clients ignore a longer Retry-After
RETRY_S_UNKNOWN: Final = 1.0  # when nothing was measured
SPREAD: Final = 0.25  # random share added, so that clients refused together do not return together

OVERLOADED: Final = "The service is overloaded: this request would have to wait for too long."
TENANT_BEHIND: Final = "Too many of your requests are waiting already."
LARGER_THAN_QUEUE: Final = "The request is larger than the whole queue of your service tier and can never pass."


class Overload:
    """`random` draws from [0, 1)."""

    def __init__(self, fleet: FleetView, *, random: Callable[[], float]) -> None:
        self._fleet = fleet
        self._random = random
        self.queues = Queues()
        self.breakers = Breakers()
        self.retries = RetryBudget()

    def check(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        """Before a job is published; it counts in `queues` only after that. Raises QueueFull, Unavailable."""
        self.check_load(job, pool, terms, now)
        self._check_faults(job, pool, terms, now)  # last, since passing may use up a probe or a retry

    def check_load(self, job: wire.Job, pool: str, terms: Terms, now: float) -> None:
        """The part of `check` that has no side effects. Raises QueueFull, Unavailable."""
        self._check_bounds(job, pool, terms, now)
        self._check_forecast(job, pool, terms, now)

    def late(self, job: wire.Job, pool: str, terms: Terms, now: float) -> GatewayError:
        """The error for a job that has waited as long as it may, and is still queued."""
        advice = self.advice_ms(job, pool, terms, now)
        if self._tenant_behind(job, pool, terms, now, itself=1):
            return QueueFull(TENANT_BEHIND, retry_after_ms=advice)
        return DeadlineExceeded("No worker could start this request in time.", retry_after_ms=advice)

    def advice_ms(self, job: wire.Job, pool: str, terms: Terms, now: float) -> int:
        """The retry delay for a job that found its queue full."""
        return self._advice_ms(self.forecast(job, pool, now), terms)

    def forecast(self, job: wire.Job, pool: str, now: float, *, alone: bool = False) -> Forecast | None:
        """`alone`: as if its tenant had no other request waiting."""
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
        own = work_of(job)
        if not _above_bounds(self.queues.total(pool, job.tier, now) + own, terms):
            return
        if _above_bounds(own, terms):
            raise QueueFull(LARGER_THAN_QUEUE, retry=False)
        raise QueueFull("The queue of your service tier is full.", retry_after_ms=self.advice_ms(job, pool, terms, now))

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
        """Whether the job would be in time without the other waiting requests of its own tenant."""
        if self.queues.waiting(pool, job.tier, now).get(job.tenant, NOTHING).requests <= itself:
            return False
        found = self.forecast(job, pool, now, alone=True)
        return found is not None and not excess_s(found, terms)

    def _advice_ms(self, found: Forecast | None, terms: Terms) -> int:
        """When this request would be admitted if no others came: what waits shrinks by one second per second."""
        return self._milliseconds(RETRY_S_UNKNOWN if found is None else excess_s(found, terms))

    def _milliseconds(self, seconds: float) -> int:
        spread = max(seconds, RETRY_S_MIN) * (1 + SPREAD * self._random())
        return round(min(spread, RETRY_S_MAX) * 1_000)


def excess_s(found: Forecast, terms: Terms) -> float:
    """By how many seconds the forecast exceeds what the terms allow; 0 if it does not."""
    most_s = terms.wait_s if terms.added_s is None else min(terms.added_s, terms.wait_s)
    late_s = found.added_s - most_s
    if terms.client_s is not None:
        late_s = max(late_s, found.first_token_s - terms.client_s)
    return max(late_s, 0.0)


def _above_bounds(work: Work, terms: Terms) -> bool:
    return _above(work.requests, terms.queued_requests_max) or _above(work.tokens, terms.queued_tokens_max)


def _above(amount: float, bound: int | None) -> bool:
    return bound is not None and amount > bound
