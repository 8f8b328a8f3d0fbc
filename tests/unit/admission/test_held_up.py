"""Who may ask while somebody holds a tenant's row."""

import uuid

from gateway.admission.held_up import HeldUp

HELD, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def test_a_tenant_that_is_not_answered_asks_once_at_a_time() -> None:
    tenants = HeldUp()
    assert [tenants.may_ask(HELD) for _ in range(3)] == [True] * 3
    tenants.unanswered(HELD)
    assert [tenants.may_ask(HELD) for _ in range(3)] == [True, False, False]
    assert tenants.may_ask(OTHER)
    tenants.unanswered(HELD)
    assert tenants.may_ask(HELD)
    tenants.answered(HELD)
    assert [tenants.may_ask(HELD) for _ in range(3)] == [True] * 3


def test_one_that_leaves_makes_room_for_the_next_and_blames_nobody() -> None:
    tenants = HeldUp()
    tenants.unknown(OTHER)
    assert [tenants.may_ask(OTHER) for _ in range(2)] == [True] * 2
    tenants.unanswered(HELD)
    assert tenants.may_ask(HELD)
    tenants.unknown(HELD)
    assert [tenants.may_ask(HELD) for _ in range(2)] == [True, False]
