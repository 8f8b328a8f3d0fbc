"""The limiter's core as a state machine: whatever the history, no span of time gets more than a burst and its refill,
and no moment more than a cap."""

import uuid
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.limiter import Decision, Demand, Limit, Used
from gateway.admission.local_limiter import LocalLimiter
from tests.demands import demand, limit

KEYS = (uuid.uuid4(), uuid.uuid4())
TPM, BURST, RPM, KEY_TPM, OPEN, QUEUED_TOKENS = 700, 100, 90, 301, 4, 130


def limits(key: uuid.UUID) -> tuple[Limit, ...]:
    return (
        limit("requests", RPM),
        limit("tokens", TPM, burst=BURST),
        limit("tokens", KEY_TPM, key=key),
        limit("concurrency", OPEN),
        limit("queued_tokens", QUEUED_TOKENS, key=key),
    )


class LimiterMachine(RuleBasedStateMachine):
    """Checked by an oracle in exact fractions that knows only the tokens held or used, and the time."""

    reservations: Bundle[tuple[uuid.UUID, int]] = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000_000
        self.limiter = LocalLimiter(lambda: self.now_us)
        self.room = {"tenant": Fraction(BURST), KEYS[0]: Fraction(KEY_TPM), KEYS[1]: Fraction(KEY_TPM)}
        self.requests = Fraction(RPM)
        self.key_of: dict[uuid.UUID, uuid.UUID] = {}
        self.demands: dict[uuid.UUID, Demand] = {}
        self.running: set[uuid.UUID] = set()

    @rule(us=st.one_of(st.integers(0, 1_000_000), st.integers(0, 10**12)))
    def time_passes(self, us: int) -> None:
        self.now_us += us
        elapsed = Fraction(us, 60_000_000)
        self.requests = min(Fraction(RPM), self.requests + RPM * elapsed)
        self.room["tenant"] = min(Fraction(BURST), self.room["tenant"] + TPM * elapsed)
        for key in KEYS:
            self.room[key] = min(Fraction(KEY_TPM), self.room[key] + KEY_TPM * elapsed)

    @rule(target=reservations, key=st.sampled_from(KEYS), tokens=st.integers(0, BURST + 20))
    def admit(self, key: uuid.UUID, tokens: int) -> tuple[uuid.UUID, int]:
        one = demand(*limits(key), tokens=tokens, key=key)
        decision = self.limiter.decide(one)
        fits = (
            self.requests >= 1
            and self.room["tenant"] >= tokens
            and self.room[key] >= tokens
            and len(self.demands) < OPEN
            and self.queued(key) + tokens <= QUEUED_TOKENS
        )
        assert (decision.refused is None) == fits
        if fits:
            self.requests -= 1
            self.room["tenant"] -= tokens
            self.room[key] -= tokens
            self.key_of[one.request_id] = key
            self.demands[one.request_id] = one
        else:
            self.check_wait(one, decision)
        return one.request_id, tokens

    def queued(self, key: uuid.UUID) -> int:
        waiting = (one for name, one in self.demands.items() if name not in self.running)
        return sum(one.tokens for one in waiting if one.api_key_id == key)

    @rule(reservation=reservations)
    def start(self, reservation: tuple[uuid.UUID, int]) -> None:
        self.limiter.started(reservation[0])
        if reservation[0] in self.demands:
            self.running.add(reservation[0])

    def check_wait(self, one: Demand, decision: Decision) -> None:
        if decision.retry_after_ms is None:
            assert one.tokens > BURST
            return
        if decision.refused_by in {"concurrency", "queued_tokens"}:
            return
        minutes = Fraction(decision.retry_after_ms, 60_000)
        assert self.room["tenant"] + TPM * minutes >= one.tokens
        assert self.room[one.api_key_id] + KEY_TPM * minutes >= one.tokens
        assert self.requests + RPM * minutes >= 1

    @rule(reservation=reservations)
    def admit_again(self, reservation: tuple[uuid.UUID, int]) -> None:
        if reservation[0] in self.demands:
            assert self.limiter.decide(self.demands[reservation[0]]).refused is None

    @rule(reservation=consumes(reservations), part=st.fractions(0, 2), times=st.integers(1, 2))
    def settle(self, reservation: tuple[uuid.UUID, int], part: Fraction, times: int) -> None:
        request_id, tokens = reservation
        used = int(tokens * part)
        for _ in range(times):
            self.limiter.close(request_id, Used(used))
        key = self.key_of.pop(request_id, None)
        self.demands.pop(request_id, None)
        if key is not None:
            if used == 0 and request_id not in self.running:
                self.requests = min(Fraction(RPM), self.requests + 1)
            refund = max(tokens - used, 0)
            self.room["tenant"] = min(Fraction(BURST), self.room["tenant"] + refund)
            self.room[key] = min(Fraction(KEY_TPM), self.room[key] + refund)

    @invariant()
    def never_more_than_a_burst(self) -> None:
        assert all(room <= most for room, most in zip(self.room.values(), (BURST, KEY_TPM, KEY_TPM), strict=True))


TestLimiter = LimiterMachine.TestCase
TestLimiter.settings = settings(max_examples=50)
