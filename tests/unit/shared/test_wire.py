"""Programs of different versions read each other's jobs."""

import msgspec

from shared import wire
from tests.unit.dispatch.samples import job

BEFORE_TRACES = 14  # fields of a job


def test_a_job_of_an_older_gateway_has_no_trace() -> None:
    fields = msgspec.msgpack.decode(wire.encode(job()))
    old = wire.decode(msgspec.msgpack.encode(fields[:BEFORE_TRACES]), wire.Job)
    assert old == job()
    assert (old.traceparent, old.tracestate) == ("", "")


def test_an_older_worker_skips_what_it_does_not_know() -> None:
    traced = msgspec.structs.replace(job(), traceparent="00-a-b-01", tracestate="c=d")
    fields = msgspec.msgpack.decode(wire.encode(traced))
    assert fields[BEFORE_TRACES:] == ["00-a-b-01", "c=d"]
    newer = msgspec.msgpack.encode([*fields, "of a version to come"])
    assert wire.decode(newer, wire.Job) == traced


def test_a_job_counts_its_choices_and_each_prompt_once() -> None:
    prompts = (wire.pack_ids([1, 2, 3]), wire.pack_ids([2**32 - 1]))
    two = msgspec.structs.replace(job(), prompts=prompts, n=3)
    assert (two.choices, two.prompt_tokens) == (6, 4)
