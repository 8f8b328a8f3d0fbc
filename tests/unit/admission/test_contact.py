"""Contact with Postgres lasts only without a gap, and without a step of its clock."""

import pytest

from gateway.admission.contact import Contact


class Clock:
    now_us = 0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def contact(clock: Clock) -> Contact:
    return Contact(lambda: clock.now_us, gap_us=7, enough_us=20)


def see(contact: Contact, clock: Clock, *waits_us: int, steady: bool = True) -> bool:
    for wait_us in waits_us:
        clock.now_us += wait_us
        contact.seen(steady=steady)
    return contact.lasting


def test_it_lasts_once_it_was_seen_for_long_enough(contact: Contact, clock: Clock) -> None:
    assert not contact.lasting
    assert not see(contact, clock, 100, 7, 7, 5)
    assert see(contact, clock, 1)
    assert see(contact, clock, 7)


def test_it_begins_anew_after_a_gap(contact: Contact, clock: Clock) -> None:
    assert see(contact, clock, 0, 7, 7, 7)
    assert not see(contact, clock, 8)
    assert not see(contact, clock, 7, 7)
    assert see(contact, clock, 7)


def test_it_begins_anew_when_the_clock_was_set(contact: Contact, clock: Clock) -> None:
    assert see(contact, clock, 0, 7, 7, 7)
    assert not see(contact, clock, 1, steady=False)
    assert not see(contact, clock, 7, 7)
    assert see(contact, clock, 7)
