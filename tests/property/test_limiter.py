"""The bucket core as a state machine: whatever the history, no span of time gets more than a burst and its refill."""

import uuid
from fractions import Fraction

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.admission.limiter import BucketLimit, Decision, Demand
from gateway.admission.local_limiter import LocalLimiter

TENANT = uuid.uuid4()
KEYS = (uuid.uuid4(), uuid.uuid4())
TPM, BURST, RPM, KEY_TPM = 700, 100, 90, 301


def limits(key: uuid.UUID) -> tuple[BucketLimit, ...]:
    return (
        BucketLimit(metric="requests", scope="tenant", per_minute=RPM, burst=None),
        BucketLimit(metric="tokens", scope="tenant", per_minute=TPM, burst=BURST),
        BucketLimit(metric="tokens", scope=f"key:{key}", per_minute=KEY_TPM, burst=None),
    )


class LimiterMachine(RuleBasedStateMachine):
    """Against an oracle in exact fractions that knows only this: tokens held or used, and time."""

    reservations: Bundle[tuple[uuid.UUID, int]] = Bundle("reservations")

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 1_000_000
        self.limiter = LocalLimiter(lambda: self.now_us)
        self.room = {"tenant": Fraction(BURST), KEYS[0]: Fraction(KEY_TPM), KEYS[1]: Fraction(KEY_TPM)}
        self.requests = Fraction(RPM)
        self.key_of: dict[uuid.UUID, uuid.UUID] = {}
        self.demands: dict[uuid.UUID, Demand] = {}

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
        demand = Demand(
            request_id=uuid.uuid4(),
            tenant_id=TENANT,
            api_key_id=key,
            requests=1,
            tokens=tokens,
            limits=limits(key),
        )
        decision = self.limiter.decide(demand)
        fits = self.requests >= 1 and self.room["tenant"] >= tokens and self.room[key] >= tokens
        assert (decision.refused_by is None) == fits
        if fits:
            self.requests -= 1
            self.room["tenant"] -= tokens
            self.room[key] -= tokens
            self.key_of[demand.request_id] = key
            self.demands[demand.request_id] = demand
        else:
            self.check_wait(demand, decision)
        return demand.request_id, tokens

    def check_wait(self, demand: Demand, decision: Decision) -> None:
        if decision.retry_after_ms is None:
            assert demand.tokens > BURST
            return
        minutes = Fraction(decision.retry_after_ms, 60_000)
        assert self.room["tenant"] + TPM * minutes >= demand.tokens
        assert self.room[demand.api_key_id] + KEY_TPM * minutes >= demand.tokens
        assert self.requests + RPM * minutes >= 1

    @rule(reservation=reservations)
    def admit_again(self, reservation: tuple[uuid.UUID, int]) -> None:
        if reservation[0] in self.demands:
            assert self.limiter.decide(self.demands[reservation[0]]).refused_by is None

    @rule(reservation=consumes(reservations), part=st.fractions(0, 2), times=st.integers(1, 2))
    def settle(self, reservation: tuple[uuid.UUID, int], part: Fraction, times: int) -> None:
        request_id, tokens = reservation
        used = int(tokens * part)
        for _ in range(times):
            self.limiter.close(request_id, used)
        key = self.key_of.pop(request_id, None)
        self.demands.pop(request_id, None)
        if key is not None:
            refund = max(tokens - used, 0)
            self.room["tenant"] = min(Fraction(BURST), self.room["tenant"] + refund)
            self.room[key] = min(Fraction(KEY_TPM), self.room[key] + refund)

    @invariant()
    def never_more_than_a_burst(self) -> None:
        assert all(room <= most for room, most in zip(self.room.values(), (BURST, KEY_TPM, KEY_TPM), strict=True))


TestLimiter = LimiterMachine.TestCase
TestLimiter.settings = settings(max_examples=50, deadline=None)
