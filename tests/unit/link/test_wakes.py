"""What a worker keeps of its wakes."""

from shared import subjects
from worker.link.wakes import Wakes

SUBJECT = subjects.job_subject("default", 0, "acme")
WAKE = SUBJECT.replace(".job.", ".wake.job.")


def headers(sequence: int) -> bytes:
    return f"NATS/1.0\r\nNats-Sequence: {sequence}\r\nNats-Time-Stamp: 2026-11-30T12:00:00.5Z\r\n\r\n".encode()


def told(wakes: Wakes) -> dict[str, list[int]]:
    return {subject: [job.seq for job in jobs] for subject, jobs in wakes.take().items()}


def test_jobs_are_told_once_in_the_order_of_their_queue() -> None:
    wakes = Wakes()
    assert all(wakes.note(WAKE, b"job", headers(sequence)) for sequence in (4, 7))
    assert told(wakes) == {SUBJECT: [4, 7]}
    assert told(wakes) == {}


def test_what_the_queue_itself_has_told_is_dropped() -> None:
    wakes = Wakes()
    for sequence in (4, 7):
        wakes.note(WAKE, b"job", headers(sequence))
    wakes.seen(SUBJECT, 6)
    wakes.seen("another", 9)
    assert told(wakes) == {SUBJECT: [7]}
    wakes.note(WAKE, b"job", headers(8))
    wakes.seen(SUBJECT, 8)
    assert told(wakes) == {}


def test_a_wake_without_its_job_means_that_the_queues_are_asked() -> None:
    wakes = Wakes()
    wakes.note(WAKE, b"job", headers(4))
    assert not wakes.note(WAKE, b"", headers(5)), "of a stream that an earlier version made"
    assert told(wakes) == {}
    assert not wakes.note(WAKE, b"job", b"")


def test_more_than_fits_is_forgotten_and_asked_for() -> None:
    wakes = Wakes(bytes_max=10)
    assert wakes.note(WAKE, b"123456", headers(4))
    wakes.seen(SUBJECT, 4)
    assert wakes.note(WAKE, b"123456", headers(5)), "what was dealt with counts no more"
    assert not wakes.note(WAKE, b"12345", headers(6))
    assert told(wakes) == {}
    assert wakes.note(WAKE, b"123456", headers(7))
