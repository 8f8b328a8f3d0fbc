"""Spans: what a program did for one request and how long it took, recorded afterwards for a collector.

Owns the type of a span and whether tracing is on. It is off unless the standard OTEL_* variables ask for it; then
nothing is sampled, nothing of OpenTelemetry is imported, and a request has a trace id for the log alone. Invariant:
`record` neither waits nor raises, whatever happens to the spans.
"""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Final, Literal, Protocol

import msgspec

from shared import ids
from shared.settings import SettingsError
from shared.traceparent import Context

Kind = Literal["server", "client", "producer", "consumer", "internal"]
Value = str | int | float | bool | tuple[str, ...]

PROTOCOL: Final = "http/protobuf"
OR_OFF: Final = "OTEL_TRACES_EXPORTER=none turns tracing off"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Times are monotonic seconds of this process. Names are few; attributes hold ids, counts and fixed words of
    ours.
    """

    name: str
    context: Context
    parent: Context | None
    start_s: float
    end_s: float
    kind: Kind = "internal"
    attributes: Mapping[str, Value] = {}
    error: str | None = None  # `error.type`, a stable word: the span failed


class Tracer(Protocol):
    @property
    def exported_total(self) -> int:
        """Spans that a collector has accepted."""
        ...

    @property
    def dropped_total(self) -> int:
        """Spans that were recorded but not delivered."""
        ...

    def begin(self, parent: Context | None) -> Context:
        """The context of a new request: in its caller's trace if there is one. Decides whether it is sampled."""
        ...

    def record(self, spans: Iterable[Span]) -> None:
        """Hand over the spans of sampled contexts. Spans that fail to be created count as dropped."""
        ...


class Off:
    """The tracer that records nothing."""

    exported_total = 0
    dropped_total = 0

    def begin(self, parent: Context | None) -> Context:
        return Context(ids.trace_id() if parent is None else parent.trace, ids.span_id())

    def record(self, spans: Iterable[Span]) -> None:
        """Does nothing. A worker may get sampled contexts from a gateway whose tracing is on."""


@contextmanager
def tracing(environ: Mapping[str, str], *, service: str, instance: str) -> Generator[Tracer]:
    """The tracer of this process: `instance` of `service`. On leaving, sends what is left, for a bounded time.

    Raises SettingsError for settings that cannot be honoured.
    """
    if not asked_for(environ):
        yield Off()
        return
    try:
        from shared.otlp import OtlpTracer  # noqa: PLC0415 - see the module's docstring
    except ImportError as error:
        raise SettingsError(f"OTEL_* asks for traces, and forebay[telemetry] is not installed; {OR_OFF}") from error
    tracer = OtlpTracer(environ, service=service, instance=instance)
    try:
        yield tracer
    finally:
        tracer.close()


def asked_for(environ: Mapping[str, str]) -> bool:
    """Whether the settings name a collector: an endpoint, or the exporter `otlp` with its default endpoint."""
    exporter = environ.get("OTEL_TRACES_EXPORTER", "")
    if exporter not in {"", "otlp", "none"}:
        raise SettingsError(f"OTEL_TRACES_EXPORTER: {exporter!r} is neither otlp nor none")
    if exporter == "none" or environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if exporter != "otlp" and not any(environ.get(name) for name in _ENDPOINTS):
        return False
    for name in _PROTOCOLS:
        if environ.get(name, PROTOCOL) not in {"", PROTOCOL}:
            raise SettingsError(f"{name}: only {PROTOCOL} is spoken; {OR_OFF}")
    return True
