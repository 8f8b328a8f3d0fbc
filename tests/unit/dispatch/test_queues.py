"""What is counted as waiting, and what of it comes before a new job."""

import contextlib

import msgspec

from gateway.dispatch.queues import NOTHING, ROWS_MAX, SAID_S, Queues, Work
from shared import wire
from tests.unit.dispatch.samples import job


def of(tenant: str, *, tier: int = 0, tokens: int = 3, n: int = 1) -> wire.Job:
    return msgspec.structs.replace(job(n=n), tenant=tenant, tier=tier, prompts=(wire.pack_ids([1] * tokens),))


def said(*rows: tuple[int, str, int, int], gateway: str = "other") -> wire.GatewayBeat:
    queued = tuple(
        wire.QueuedWork(pool="default", tier=tier, tenant=tenant, requests=requests, sequences=requests, tokens=tokens)
        for tier, tenant, requests, tokens in rows
    )
    return wire.GatewayBeat(gateway=gateway, incarnation="i", queued=queued)


def test_a_job_counts_while_it_waits_and_leaves_nothing() -> None:
    queues = Queues()
    with queues.holding(of("a", tokens=5, n=2), "default"), queues.holding(of("b"), "default"):
        assert queues.total("default", 0, 0.0) == Work(2, 3, 8)
        assert queues.total("other", 0, 0.0) == NOTHING
        assert {(row.tenant, row.requests, row.sequences, row.tokens) for row in queues.rows()} == {
            ("a", 1, 2, 5),
            ("b", 1, 1, 3),
        }
    assert queues.total("default", 0, 0.0) == NOTHING
    assert queues.rows() == ()


def test_more_urgent_tiers_come_first_and_less_urgent_ones_never() -> None:
    queues = Queues()
    with contextlib.ExitStack() as stack:
        for tier in (0, 1, 2):
            stack.enter_context(queues.holding(of("x", tier=tier, tokens=10**tier), "default"))
        assert queues.ahead(of("y", tier=1), "default", 0.0).tokens == 1 + 10


def test_tenants_of_a_tier_take_turns_whoever_has_more_waiting() -> None:
    queues = Queues()
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(queues.holding(of("flood", tokens=10), "default"))
        assert queues.ahead(of("modest"), "default", 0.0) == Work(1, 1, 10)
        assert queues.ahead(of("flood"), "default", 0.0) == Work(100, 100, 1_000)
        assert queues.ahead(of("flood"), "default", 0.0, alone=True) == NOTHING
        stack.enter_context(queues.holding(of("modest"), "default"))
        assert queues.ahead(of("flood"), "default", 0.0).sequences == 101
        assert queues.ahead(of("modest"), "default", 0.0).sequences == 1 + 2


def test_what_other_gateways_say_counts_for_a_while() -> None:
    queues = Queues()
    queues.heard(said((0, "a", 2, 20), (1, "a", 5, 50)), 10.0)
    queues.heard(said((0, "a", 1, 1), gateway="third"), 10.0)
    with queues.holding(of("a"), "default"):
        assert queues.total("default", 0, 10.0) == Work(4, 4, 24)
        assert queues.total("default", 0, 10.0 + SAID_S + 0.1) == Work(1, 1, 3)
    queues.heard(said(), 10.5)
    assert queues.total("default", 0, 10.5) == Work(1, 1, 1)


def test_a_beat_names_the_largest_of_very_many() -> None:
    queues = Queues()
    with contextlib.ExitStack() as stack:
        for number in range(ROWS_MAX + 5):
            stack.enter_context(queues.holding(of(f"t{number}", tokens=1 + number), "default"))
        rows = queues.rows()
    assert len(rows) == ROWS_MAX
    assert min(row.tokens for row in rows) == 6
