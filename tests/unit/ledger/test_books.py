import datetime as dt
from typing import Any

from gateway.ledger.books import LOOK_SLACK, Completeness, completeness
from gateway.ledger.consumer import Ledger
from gateway.metrics import Metrics
from shared.jobs import StreamInfo, StreamState

NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)
OLDEST = NOW - dt.timedelta(minutes=5)


def test_bills_are_complete_until_the_oldest_that_waits() -> None:
    seen = completeness(StreamInfo(state=StreamState(messages=3, first_ts=OLDEST), ts=NOW))
    assert (seen.complete_until, seen.pending) == (OLDEST, 3)


def test_without_any_that_waits_they_are_complete_until_just_now() -> None:
    """What the stream says of its oldest message is then of one that is gone."""
    seen = completeness(StreamInfo(state=StreamState(messages=0, first_ts=OLDEST), ts=NOW))
    assert (seen.complete_until, seen.pending) == (NOW - LOOK_SLACK, 0)


def test_the_metrics_tell_what_was_booked_and_until_when_nothing_is_missing() -> None:
    nothing: Any = None
    ledger = Ledger(nothing, nothing)
    ledger.writer.inserted_total, ledger.writer.unpriced_total = 5, 2
    metrics = Metrics()
    metrics.watch_ledger(ledger)
    before = metrics.exposition().decode()
    assert 'forebay_usage_events_total{as="booked"} 5.0' in before
    assert "forebay_usage_events_unpriced_total 2.0" in before
    assert "forebay_usage_complete_until" not in before  # unknown is not 0
    ledger.books.completeness = Completeness(complete_until=OLDEST, pending=3)
    after = metrics.exposition().decode()
    [line] = [line for line in after.splitlines() if line.startswith("forebay_usage_complete_until_seconds")]
    assert float(line.split()[1]) == OLDEST.timestamp()
    assert "forebay_usage_events_waiting 3.0" in after
