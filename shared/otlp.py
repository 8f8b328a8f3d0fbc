"""Sends spans to an OpenTelemetry collector, over OTLP/HTTP, by the SDK. Imported only where tracing is on.

Owns the SDK: its standard settings, its batches and the thread that sends them, and the counts of spans sent and
dropped. Knows no span of ours. Invariant: recording a span never waits; a collector that is away or slow costs spans,
which are counted, and nothing else.
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from opentelemetry import trace as api
from opentelemetry.context import Context as Carrier
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator

from shared import ids, log
from shared.settings import SettingsError
from shared.trace import Kind, Span
from shared.traceparent import Context

QUEUE_MAX: Final = 8_192  # spans that wait to be sent, from about 1,000 requests: OTEL_BSP_MAX_QUEUE_SIZE
FLUSH_S: Final = 3.0  # for what is left at the end of the process
CLOCKS_APART_NS_MAX: Final = 20_000
DEFAULT_SAMPLER: Final = "parentbased_always_on"

_KINDS: Final[Mapping[Kind, api.SpanKind]] = {
    "server": api.SpanKind.SERVER,
    "client": api.SpanKind.CLIENT,
    "producer": api.SpanKind.PRODUCER,
    "consumer": api.SpanKind.CONSUMER,
    "internal": api.SpanKind.INTERNAL,
}


class OtlpTracer:
    """Implements `shared.trace.Tracer`. Used by one thread."""

    def __init__(self, environ: Mapping[str, str], *, service: str, instance: str) -> None:
        """Raises SettingsError. The exporter and the batches read their own variables, of the process."""
        self._sampler = sampler(environ)
        self._queue_max = _count(environ, "OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_MAX)
        resource = Resource.create(
            {
                "service.name": environ.get("OTEL_SERVICE_NAME") or service,
                "service.version": version("forebay"),
                "service.instance.id": instance,
            }
        )
        try:
            self._exporter = _Counting(OTLPSpanExporter())
            self._batches = BatchSpanProcessor(self._exporter, max_queue_size=self._queue_max)
        except ValueError as error:
            raise SettingsError(f"OTEL_*: {error}") from error
        self._ids = _Given()
        provider = TracerProvider(
            sampler=sampling.ALWAYS_ON, resource=resource, shutdown_on_exit=False, id_generator=self._ids
        )
        provider.add_span_processor(self._batches)
        self._tracer = provider.get_tracer("forebay")
        self._wall = _Wall()
        self._log = log.get("trace")
        self._recorded = 0
        self._untold = 0  # dropped for lack of room, or by a fault of ours
        # Replaces the SDK's log lines, one for each failed try, by one event and a counter.
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        logging.getLogger("opentelemetry").propagate = False

    @property
    def exported_total(self) -> int:
        return self._exporter.sent

    @property
    def dropped_total(self) -> int:
        return self._untold + self._exporter.failed

    def begin(self, parent: Context | None) -> Context:
        trace = ids.trace_id() if parent is None else parent.trace
        decided = self._sampler.should_sample(_carrier(parent), int(trace, 16), "request")
        sampled = decided.decision.is_sampled()
        return Context(trace, ids.span_id(), sampled, parent.state if parent is not None and sampled else "")

    def record(self, spans: Iterable[Span]) -> None:
        offset_ns = self._wall.offset_ns()
        try:
            for span in spans:
                if self._recorded - self._exporter.taken >= self._queue_max:
                    self._untold += 1
                    continue
                self._hand_over(span, offset_ns)
                self._recorded += 1
        except Exception:  # noqa: BLE001 - a fault in a span must not affect its request
            self._untold += 1
            self._log.exception("trace.not_told")

    def close(self) -> None:
        """Send what is left, for a bounded time, whether or not the collector answers."""
        flush = threading.Thread(target=self._batches.shutdown, name="last spans", daemon=True)
        flush.start()
        flush.join(FLUSH_S)
        if flush.is_alive():
            self._exporter.shutdown()  # wakes it from waiting between two tries

    def _hand_over(self, span: Span, offset_ns: int) -> None:
        self._ids.trace, self._ids.span = int(span.context.trace, 16), int(span.context.span, 16)
        otel_span = self._tracer.start_span(
            span.name,
            _carrier(span.parent),
            _KINDS[span.kind],
            span.attributes,
            start_time=round(span.start_s * 1e9) + offset_ns,
        )
        if span.error is not None:
            otel_span.set_attribute("error.type", span.error)
            otel_span.set_status(api.StatusCode.ERROR)
        otel_span.end(round(span.end_s * 1e9) + offset_ns)


class _Wall:
    """The offset from monotonic to wall time, correct even if this thread is paused between reading the two clocks."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def offset_ns(self) -> int:
        before_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        if time.monotonic_ns() - before_ns < CLOCKS_APART_NS_MAX:
            self._offset_ns = wall_ns - before_ns
        return self._offset_ns


class _Given(IdGenerator):
    """Passes the ids of a recorded span to the SDK: they were drawn when its context was passed on, before the span
    ended.
    """

    def __init__(self) -> None:
        self.trace = 0
        self.span = 0

    def generate_trace_id(self) -> int:
        return self.trace

    def generate_span_id(self) -> int:
        return self.span


class _Counting(SpanExporter):
    """Sends through `exporter` and counts; called by the SDK's thread. Logs when sending begins and ceases to fail."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._log = log.get("trace")
        self._closed = False
        self._failing = False
        self.taken = 0
        self.sent = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._exporter.export(spans)
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
        else:
            self.failed += len(spans)
        self._note(failing=result is not SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        if not self._closed:
            self._closed = True
            self._exporter.shutdown()

    def _note(self, *, failing: bool) -> None:
        if failing and not self._failing:
            self._log.warning("trace.export_failed", dropped=self.failed)
        elif self._failing and not failing:
            self._log.info("trace.export_resumed", dropped=self.failed)
        self._failing = failing


def sampler(environ: Mapping[str, str]) -> sampling.Sampler:
    """The sampler by the standard variables. Raises SettingsError where the SDK would fall back to sampling
    everything.
    """
    name = environ.get("OTEL_TRACES_SAMPLER") or DEFAULT_SAMPLER
    raw = environ.get("OTEL_TRACES_SAMPLER_ARG") or "1"
    try:
        root = name.removeprefix("parentbased_")
        found = {
            "always_on": lambda: sampling.ALWAYS_ON,
            "always_off": lambda: sampling.ALWAYS_OFF,
            "traceidratio": lambda: sampling.TraceIdRatioBased(float(raw)),
        }[root]()
    except KeyError:
        raise SettingsError(f"OTEL_TRACES_SAMPLER: {name!r} is not a standard sampler") from None
    except ValueError:
        raise SettingsError(f"OTEL_TRACES_SAMPLER_ARG: {raw!r} is not a number from 0 to 1") from None
    return found if root == name else sampling.ParentBased(found)


def _count(environ: Mapping[str, str], name: str, default: int) -> int:
    raw = environ.get(name) or str(default)
    if not raw.isdecimal() or int(raw) < 1:
        raise SettingsError(f"{name}: {raw!r} is not a positive number")
    return int(raw)


def _carrier(parent: Context | None) -> Carrier:
    """An empty context rather than None, which the SDK takes for the current one."""
    if parent is None:
        return Carrier()
    flags = api.TraceFlags(api.TraceFlags.SAMPLED if parent.sampled else api.TraceFlags.DEFAULT)
    state = api.TraceState.from_header([parent.state]) if parent.state else None
    span = api.SpanContext(int(parent.trace, 16), int(parent.span, 16), True, flags, state)
    return api.set_span_in_context(api.NonRecordingSpan(span), Carrier())
