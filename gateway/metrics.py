"""The gateway's Prometheus metrics, in a registry of their own. Labels are bounded: no tenant, no key, no free text."""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.ledger.consumer import Ledger
from shared.trace import Tracer
from shared.usage import UsagePublisher

UNKNOWN_MODEL = "unknown"  # the label of requests that named no model we serve

TTFT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 30, 60)
ITL_BUCKETS = (0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "forebay_requests", "Requests by how they ended", ["model", "outcome"], registry=self.registry
        )
        self.client_retries = Counter(
            "forebay_client_retries",
            "Requests that their clients say they have sent before",
            ["model"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "forebay_ttft_seconds",
            "From the request's arrival to its first token",
            buckets=TTFT_BUCKETS,
            registry=self.registry,
        )
        self.itl = Histogram(
            "forebay_itl_seconds",
            "Between two deliveries of a stream's tokens",
            buckets=ITL_BUCKETS,
            registry=self.registry,
        )
        self.limits = Counter(
            "forebay_limits_reached",
            "Requests that a limit refused, or would have refused in shadow mode",
            ["metric", "mode"],
            registry=self.registry,
        )
        self.streams_open = Gauge("forebay_streams_open", "Streaming answers being sent", registry=self.registry)
        self.requests_open = Gauge("forebay_requests_open", "Requests being served", registry=self.registry)

    def watch_workers(self, states: Callable[[], Mapping[str, int]]) -> None:
        """`states()` says how many workers of the fleet are in which state."""
        self.registry.register(_Workers(states))

    def watch_ledger(self, ledger: Ledger) -> None:
        """What this process's ledger has done, and until when bills are complete."""
        self.registry.register(_Ledger(ledger))

    def watch_usage(self, usage: UsagePublisher) -> None:
        """The bills that this gateway itself has to write: of attempts that were lost or never ran."""
        self.registry.register(_Usage(usage))

    def watch_limiter(self, *, in_grace: Callable[[], bool], settlements_dropped: Callable[[], int]) -> None:
        """Whether limits are local shares because Postgres is away, and the settlements that were given up."""
        about = "1 while Postgres is away and limits are local shares"
        Gauge("forebay_postgres_away", about, registry=self.registry).set_function(in_grace)
        self.registry.register(_Settlements(settlements_dropped))

    def watch_tracer(self, tracer: Tracer) -> None:
        """What became of the spans of this process."""
        self.registry.register(_Spans(tracer))

    def exposition(self) -> bytes:
        """The text that Prometheus scrapes."""
        return generate_latest(self.registry)


class _Workers(Collector):
    def __init__(self, states: Callable[[], Mapping[str, int]]) -> None:
        self._states = states

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("forebay_workers", "Workers as this gateway hears them", labels=["state"])
        for state, count in self._states().items():
            family.add_metric([state], count)
        yield family


class _Ledger(Collector):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        writer, seen = self._ledger.writer, self._ledger.books.completeness
        events = CounterMetricFamily("forebay_usage_events", "Usage events taken by this ledger", labels=["as"])
        for name, total in (
            ("booked", writer.inserted_total),
            ("repeated", writer.repeated_total),
            ("rejected", writer.rejected_total),
        ):
            events.add_metric([name], total)
        yield events
        unpriced = "Booked usage events that no price applied to"
        yield CounterMetricFamily("forebay_usage_events_unpriced", unpriced, value=writer.unpriced_total)
        if seen is not None:
            until = "Unix time before which every event that NATS acknowledged is booked"
            yield GaugeMetricFamily(
                "forebay_usage_complete_until_seconds", until, value=seen.complete_until.timestamp()
            )
            waiting = "Usage events that wait in NATS"
            yield GaugeMetricFamily("forebay_usage_events_waiting", waiting, value=seen.pending)


class _Usage(Collector):
    def __init__(self, usage: UsagePublisher) -> None:
        self._usage = usage

    def collect(self) -> Iterator[Metric]:
        pending, dropped = "Bills not yet acknowledged", "Bills given up for lack of memory"
        yield GaugeMetricFamily("forebay_usage_events_pending", pending, value=self._usage.pending)
        yield CounterMetricFamily("forebay_usage_events_dropped", dropped, value=self._usage.dropped_total)


class _Settlements(Collector):
    def __init__(self, dropped: Callable[[], int]) -> None:
        self._dropped = dropped

    def collect(self) -> Iterator[Metric]:
        dropped = "Settlements given up for lack of memory"
        yield CounterMetricFamily("forebay_settlements_dropped", dropped, value=self._dropped())


class _Spans(Collector):
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def collect(self) -> Iterator[Metric]:
        spans = CounterMetricFamily("forebay_spans", "Spans by what became of them", labels=["as"])
        spans.add_metric(["exported"], self._tracer.exported_total)
        spans.add_metric(["dropped"], self._tracer.dropped_total)
        yield spans
