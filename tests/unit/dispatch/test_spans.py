"""What a gateway tells of an attempt, however far it came."""

import msgspec

from gateway.dispatch.attempt import Attempt
from gateway.dispatch.spans import spans
from gateway.errors import QueueFull, WorkerLost
from shared.traceparent import Context
from tests.unit.dispatch.samples import job

PARENT = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True, "a=1")


def attempt() -> Attempt:
    traced = msgspec.structs.replace(job(), traceparent=PARENT.header, tracestate=PARENT.state)
    made = Attempt(traced, "default", 10.0, reader_bytes_max=1)
    assert (made.sampled, made.trace) == (True, PARENT.trace)
    return made


def test_it_waits_in_its_queue_from_the_publication_until_a_worker_shows_it() -> None:
    one = attempt()
    one.published_at = 11.0
    one.bind("wk", 13.0)
    publish, queue = spans(one, 20.0)
    assert (publish.name, publish.start_s, publish.end_s, publish.error) == ("publish JOBS_default_0", 10, 11, None)
    assert (queue.name, queue.start_s, queue.end_s, queue.error) == ("queue", 11, 13, None)
    assert (publish.parent, queue.parent) == (PARENT, PARENT)
    assert queue.attributes["forebay.worker.id"] == "wk"


def test_a_worker_that_is_quicker_than_the_acknowledgement_leaves_no_wait() -> None:
    one = attempt()
    one.bind("wk", 10.5)
    one.published_at = 11.0
    _, queue = spans(one, 20.0)
    assert (queue.start_s, queue.end_s) == (11, 11)


def test_one_that_was_never_queued_says_why() -> None:
    one = attempt()
    one.fail(QueueFull("Your request queue is full."))
    [publish] = spans(one, 12.0)
    assert (publish.end_s, publish.error) == (12, one.error and one.error.code)
    assert publish.error is not None


def test_one_that_was_lost_in_its_queue_has_failed_there() -> None:
    one = attempt()
    one.published_at = 11.0
    one.fail(WorkerLost("lost"))
    publish, queue = spans(one, 12.0)
    assert (publish.error, queue.error, queue.end_s) == (None, "worker_lost", 12)


def test_nothing_is_told_of_what_is_not_sampled() -> None:
    unsampled = msgspec.structs.replace(job(), traceparent=Context(PARENT.trace, PARENT.span).header)
    assert not Attempt(unsampled, "default", 0.0, reader_bytes_max=1).sampled
    assert not Attempt(job(), "default", 0.0, reader_bytes_max=1).sampled
