from bench.client import Outcome
from bench.percentiles import Spread
from bench.report import summarize


def outcome(planned_s: float, *, sent_s: float | None = None, failure: str | None = None) -> Outcome:
    """100 prompt tokens; text 1, 1.5 and 3 s after it was sent, the end half a second later."""
    sent_s = planned_s if sent_s is None else sent_s
    return Outcome(
        planned_s=planned_s,
        sent_s=sent_s,
        first_s=sent_s + 1,
        last_s=sent_s + 3,
        end_s=sent_s + 3.5,
        gaps_s=[0.5, 1.5],
        events=3,
        prompt_tokens=100,
        output_tokens=4,
        failure=failure,
    )


def test_rates_are_over_the_time_from_the_first_due_to_the_last_end() -> None:
    report = summarize([outcome(10.0), outcome(14.0)], client_cpu_s=1.5)
    assert report.wall_s == 7.5
    assert report.requests_per_s == 2 / 7.5
    assert report.output_tokens_per_s == 8 / 7.5
    assert report.prompt_tokens_per_s == 200 / 7.5
    assert report.events_per_s == 6 / 7.5
    assert report.client_cpu == 0.2


def test_latencies_are_those_of_the_requests() -> None:
    report = summarize([outcome(0.0)], client_cpu_s=0.0)
    assert report.ttft == Spread(1.0, 1.0, 1.0)
    assert report.e2e == Spread(3.5, 3.5, 3.5)
    assert report.itl is not None
    assert report.itl.p50 == 1.0


def test_a_request_that_was_sent_late_waited_from_when_it_was_due() -> None:
    report = summarize([outcome(5.0, sent_s=7.0)], client_cpu_s=0.0)
    assert report.lag == Spread(2.0, 2.0, 2.0)
    assert report.ttft == Spread(3.0, 3.0, 3.0)
    assert report.e2e == Spread(5.5, 5.5, 5.5)
    assert report.wall_s == 5.5


def test_failures_are_counted_by_kind_and_flatter_nothing() -> None:
    failed = [outcome(0.0, failure="http_429"), outcome(0.0, failure="http_429"), outcome(0.0, failure="timeout")]
    report = summarize([outcome(0.0), *failed], client_cpu_s=0.0)
    assert report.failures == {"http_429": 2, "timeout": 1}
    assert (report.requests, report.ok) == (4, 1)
    assert (report.output_tokens, report.events, report.prompt_tokens) == (4, 3, 100)
    assert report.requests_per_s == 1 / 3.5


def test_a_load_of_failures_has_no_latencies() -> None:
    report = summarize([outcome(0.0, failure="connect")], client_cpu_s=0.0)
    assert (report.ttft, report.itl, report.e2e) == (None, None, None)
    assert report.output_tokens_per_s == 0
