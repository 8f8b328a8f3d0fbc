"""What a worker tells of an attempt, however far it came."""

import msgspec
import pytest

from shared.traceparent import Context
from tests.unit.dispatch.samples import job
from worker.engine.results import RequestTotals
from worker.link.attempts import NOTHING, Attempts, Ending
from worker.link.spans import spans

PARENT = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True, "a=1")
TOTALS = RequestTotals(prompt_tokens=9, cached_tokens=4, completion_tokens=2)


def told(ending: Ending, **times: float):
    traced = msgspec.structs.replace(job(), traceparent=PARENT.header, tracestate=PARENT.state)
    attempt = Attempts().add(traced, 10.0)
    for name, at in times.items():
        setattr(attempt, name, at)
    return list(spans(attempt, ending, pool="default", worker="wk", now=20.0))


def test_its_phases_follow_each_other() -> None:
    process, *phases = told(Ending("finished", TOTALS), started_at=12.0, first_token_at=15.0)
    assert (process.name, process.parent, process.start_s, process.end_s) == ("process JOBS_default_0", PARENT, 10, 20)
    assert [(phase.name, phase.start_s, phase.end_s) for phase in phases] == [
        ("engine.wait", 10, 12),
        ("engine.prefill", 12, 15),
        ("engine.decode", 15, 20),
    ]
    assert {phase.parent for phase in phases} == {process.context}
    assert len({span.context.span for span in (process, *phases)}) == 4
    assert {span.context.trace for span in (process, *phases)} == {PARENT.trace}
    assert phases[1].attributes["forebay.tokens"] == 5


@pytest.mark.parametrize(
    ("times", "phases"),
    [
        ({}, ["engine.wait"]),
        ({"started_at": 12.0}, ["engine.wait", "engine.prefill"]),
    ],
)
def test_one_that_was_cut_short_has_no_later_phase(times: dict[str, float], phases: list[str]) -> None:
    process, *rest = told(Ending("cancelled", TOTALS), **times)
    assert [phase.name for phase in rest] == phases
    assert rest[-1].end_s == 20
    assert (process.error, process.attributes["forebay.outcome"]) == (None, "cancelled")


def test_only_an_error_has_failed() -> None:
    process, *_ = told(Ending("error", NOTHING, "engine_error", "what it says to the client"))
    assert process.error == "engine_error"
    assert "what it says" not in repr(process)


@pytest.mark.parametrize("header", ["", "00-x", f"00-{'0' * 32}-{'1' * 16}-01"])
def test_an_old_or_a_broken_gateway_s_job_has_no_trace(header: str) -> None:
    attempt = Attempts().add(msgspec.structs.replace(job(), traceparent=header), 0.0)
    assert (attempt.trace, attempt.trace_id) == (None, None)
