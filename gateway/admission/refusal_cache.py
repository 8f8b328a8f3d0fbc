"""Remembers request buckets that were just found empty, so that a client that retries without waiting costs neither
tokenization nor a round trip to Postgres.

Every request takes exactly one from such a bucket. So until the time that a refusal named, every other request under
the same limits is refused too. One whose tokens, or a budget, could make it wait longer than that is none of its
business: the time that is told must be true. Pure; the time is passed in. Invariant: a cached refusal is the one that
was decided, less the time that has passed. Nothing is cached for longer than KEPT_US, since other gateways refund
requests and limits change.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from gateway.admission.limiter import BUDGETS, Decision, Limit, LimitState

KEPT_US: Final = 500_000
REFUSALS_MAX: Final = 10_000


class _Refusal(msgspec.Struct, frozen=True):
    decision: Decision
    at_us: int
    until_us: int


class RefusalCache:
    def __init__(self) -> None:
        self._refusals: dict[tuple[Limit, ...], _Refusal] = {}  # by all limits of the request

    def note(self, limits: tuple[Limit, ...], decision: Decision, now_us: int) -> None:
        """Remember that a request under these limits was refused."""
        if decision.refused_by != "requests" or decision.retry_after_ms is None:
            return
        if any(limit.metric in BUDGETS and limit.enforced for limit in limits):  # it may refuse until its period ends
            return
        if len(self._refusals) >= REFUSALS_MAX:
            self._refusals.clear()
        self._refusals[limits] = _Refusal(decision, now_us, now_us + decision.retry_after_ms * 1_000)

    def forget(self) -> None:
        """Forget everything: a request was refunded."""
        self._refusals.clear()

    def find(self, limits: tuple[Limit, ...], tokens_max: int, now_us: int) -> Decision | None:
        """The refusal of a request of at most `tokens_max` tokens under these limits, if one is cached."""
        refusal = self._refusals.get(limits) if self._refusals else None
        if refusal is None:
            return None
        if not refusal.at_us <= now_us < min(refusal.until_us, refusal.at_us + KEPT_US):
            del self._refusals[limits]
            return None
        decision, gone_ms = refusal.decision, (now_us - refusal.at_us) // 1_000
        assert decision.refused is not None
        assert decision.retry_after_ms is not None
        if any(_will_lack(state, tokens_max, decision.retry_after_ms) for state in decision.states):
            return None
        return replace(
            decision,
            refused=_later(decision.refused, gone_ms),
            retry_after_ms=-(-(refusal.until_us - now_us) // 1_000),
            states=tuple(_later(state, gone_ms) for state in decision.states),
        )


def _will_lack(state: LimitState, tokens_max: int, wait_ms: int) -> bool:
    """Whether a bucket of tokens will not hold so many, or all that it can hold, after the wait."""
    if state.metric != "tokens" or state.burst is None:
        return False
    return state.remaining + state.limit * wait_ms // 60_000 < min(tokens_max, state.burst)


def _later(state: LimitState, gone_ms: int) -> LimitState:
    return replace(state, reset_ms=max(state.reset_ms - gone_ms, 0))
