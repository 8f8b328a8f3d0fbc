"""Buckets of requests that were found empty a moment ago: a client who does not wait then costs no tokenizer and no
round trip each time.

A request takes exactly one from such a bucket, so until the time that the refusal named, every other one under it is
refused too. Pure; the time comes in. Invariant: what is told is what was decided, for the time that is left of it; and
nothing is remembered for longer than KEPT_US, since other gateways give requests back and limits change.
"""

from typing import Final

import msgspec

from gateway.admission.bucket import Claim
from gateway.admission.limiter import Decision, Limit

KEPT_US: Final = 500_000
EMPTIED_MAX: Final = 10_000


class _Refusal(msgspec.Struct, frozen=True):
    decision: Decision
    per_minute: int
    burst: int
    at_us: int
    until_us: int


class Emptied:
    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}  # by bucket

    def note(self, claim: Claim, decision: Decision, now_us: int) -> None:
        """`claim` kept a request out."""
        if claim.metric != "requests" or decision.retry_after_ms is None:
            return
        if len(self._refusals) >= EMPTIED_MAX:
            self._refusals.clear()
        until_us = now_us + decision.retry_after_ms * 1_000
        self._refusals[claim.key] = _Refusal(decision, claim.per_minute, claim.burst, now_us, until_us)

    def forget(self) -> None:
        """A request was given back."""
        self._refusals.clear()

    def find(self, limits: tuple[Limit, ...], now_us: int) -> Decision | None:
        """The refusal of any request under these limits, if one is known."""
        if not self._refusals:
            return None
        for limit in limits:
            if limit.metric == "requests" and limit.enforced and limit.allowed:
                found = self._find(limit, now_us)
                if found is not None:
                    return found
        return None

    def _find(self, limit: Limit, now_us: int) -> Decision | None:
        key = limit.bucket
        refusal = self._refusals.get(key)
        if refusal is None:
            return None
        burst = limit.allowed if limit.burst is None else limit.burst
        is_same = (refusal.per_minute, refusal.burst) == (limit.allowed, burst)
        is_fresh = refusal.at_us <= now_us < min(refusal.until_us, refusal.at_us + KEPT_US)
        if not is_same or not is_fresh:
            del self._refusals[key]
            return None
        left_ms = -(-(refusal.until_us - now_us) // 1_000)
        return msgspec.structs.replace(refusal.decision, retry_after_ms=left_ms)
