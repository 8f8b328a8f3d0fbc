import subprocess
import sys
import threading
import time

import pytest

from shared.settings import SettingsError
from shared.trace import Off, Span, asked_for, tracing
from shared.traceparent import Context
from tests.collector import Collector, collecting

PARENT = Context("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True, "a=1")
NOWHERE = "http://127.0.0.1:9"  # discard: nobody listens


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The process's own, because the SDK reads that."""

    class Both(dict[str, str]):
        def __setitem__(self, name: str, value: str) -> None:
            super().__setitem__(name, value)
            monkeypatch.setenv(name, value)

    monkeypatch.setattr("shared.otlp.FLUSH_S", 60)  # however slow the machine is
    return Both()


def span(context: Context, parent: Context | None = None, **changes: object) -> Span:
    now = time.monotonic()
    told = {"name": "work", "context": context, "parent": parent, "start_s": now - 2, "end_s": now - 1}
    return Span(**(told | changes))


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": NOWHERE}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "OTEL_SDK_DISABLED": "True"}, False),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True),
    ],
)
def test_tracing_is_off_unless_it_is_asked_for(environ: dict[str, str], on: bool) -> None:
    assert asked_for(environ) is on


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_TRACES_SAMPLER_ARG", "half"),
        ("OTEL_TRACES_SAMPLER_ARG", "1.5"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000"),
    ],
)
def test_a_setting_that_cannot_be_followed_is_told_by_name(environ: dict[str, str], name: str, value: str) -> None:
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = NOWHERE
    environ["OTEL_TRACES_SAMPLER"] = "traceidratio"
    environ[name] = value
    shown = "OTEL_" if name == "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" else name
    with pytest.raises(SettingsError, match=shown), tracing(environ, service="s", instance="i"):
        raise AssertionError


def test_off_has_ids_and_samples_nothing() -> None:
    tracer = Off()
    fresh, joined = tracer.begin(None), tracer.begin(PARENT)
    assert (len(fresh.trace), len(fresh.span), fresh.sampled) == (32, 16, False)
    assert joined == Context(PARENT.trace, joined.span)
    assert joined.span != PARENT.span
    tracer.record([span(joined)])
    assert (tracer.exported_total, tracer.dropped_total) == (0, 0)


def test_off_imports_nothing_of_opentelemetry() -> None:
    code = (
        "import sys; from shared.trace import tracing\n"
        "with tracing({}, service='s', instance='i') as tracer: tracer.begin(None)\n"
        "sys.exit(any(name.startswith(('opentelemetry', 'google')) for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_spans_reach_the_collector_before_the_end(environ: dict[str, str]) -> None:
    with collecting() as collector:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        environ["OTEL_RESOURCE_ATTRIBUTES"] = "deployment.environment.name=test"
        with tracing(environ, service="forebay-test", instance="one") as tracer:
            context = tracer.begin(PARENT)
            child = context.child()
            asked = time.time_ns()
            inner = span(child, context, kind="producer", attributes={"n": 3, "of": ("a", "b")}, error="broken")
            tracer.record([span(context, PARENT, kind="server"), inner])
        assert (tracer.exported_total, tracer.dropped_total) == (2, 0)
    outer, inner = collector.spans
    assert (outer.trace, outer.span, outer.parent, outer.state) == (PARENT.trace, context.span, PARENT.span, "a=1")
    assert (inner.trace, inner.span, inner.parent, inner.state) == (PARENT.trace, child.span, context.span, "a=1")
    assert (outer.service, outer.kind, outer.failed, outer.attributes) == ("forebay-test", 2, False, {})
    assert (inner.kind, inner.failed) == (4, True)
    assert inner.attributes == {"n": 3, "of": ["a", "b"], "error.type": "broken"}
    assert outer.end_ns - outer.start_ns == pytest.approx(1e9, abs=1e6)
    assert outer.start_ns < asked < outer.start_ns + 60e9


def test_the_service_can_be_named(environ: dict[str, str]) -> None:
    with collecting() as collector:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        environ["OTEL_SERVICE_NAME"] = "mine"
        with tracing(environ, service="forebay-test", instance="one") as tracer:
            tracer.record([span(tracer.begin(None))])
    assert [told.service for told in collector.spans] == ["mine"]


@pytest.mark.parametrize(
    ("name", "arg", "fresh", "joined"),
    [
        ("", "", True, True),
        ("always_off", "", False, False),
        ("always_on", "", True, True),
        ("traceidratio", "0", False, False),
        ("parentbased_traceidratio", "0", False, True),
        ("parentbased_always_off", "", False, True),
    ],
)
def test_who_is_sampled(environ: dict[str, str], name: str, arg: str, fresh: bool, joined: bool) -> None:
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = NOWHERE
    environ["OTEL_TRACES_SAMPLER"] = name
    environ["OTEL_TRACES_SAMPLER_ARG"] = arg
    with tracing(environ, service="s", instance="i") as tracer:
        assert tracer.begin(None).sampled is fresh
        context = tracer.begin(PARENT)
        assert (context.sampled, context.state) == (joined, "a=1" if joined else "")
        unsampled = Context(PARENT.trace, PARENT.span)
        assert tracer.begin(unsampled).sampled is (name == "always_on")


def test_a_ratio_samples_that_share(environ: dict[str, str]) -> None:
    """Ids that are not random in every bit would all be in, or all out."""
    environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = NOWHERE
    environ["OTEL_TRACES_SAMPLER"] = "traceidratio"
    environ["OTEL_TRACES_SAMPLER_ARG"] = "0.25"
    with tracing(environ, service="s", instance="i") as tracer:
        share = sum(tracer.begin(None).sampled for _ in range(4_000)) / 4_000
    assert 0.15 < share < 0.35  # ten standard deviations


def test_a_collector_that_refuses_costs_a_count(environ: dict[str, str]) -> None:
    with collecting() as collector:
        collector.status = 400
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        with tracing(environ, service="s", instance="i") as tracer:
            tracer.record(span(tracer.begin(None)) for _ in range(3))
        assert (tracer.exported_total, tracer.dropped_total) == (0, 3)


def test_nobody_waits_for_a_collector_that_hangs(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its queue full, spans are dropped and counted; at the end it is left alone after a while."""
    monkeypatch.setattr("shared.otlp.FLUSH_S", 0.1)
    go_on = threading.Event()

    class Hanging(Collector):
        def take(self, data: bytes) -> None:
            self.came.set()
            go_on.wait(30)

    with collecting(Hanging()) as collector:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        environ["OTEL_BSP_MAX_QUEUE_SIZE"] = "4"
        environ["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] = "1"
        with tracing(environ, service="s", instance="i") as tracer:
            tracer.record([span(tracer.begin(None))])
            assert collector.came.wait(30)
            tracer.record(span(tracer.begin(None)) for _ in range(10))
            assert (tracer.exported_total, tracer.dropped_total) == (0, 6)
        go_on.set()


def test_a_fault_in_a_span_harms_nobody(environ: dict[str, str]) -> None:
    def broken():
        yield span(tracer.begin(None))
        raise ValueError("ours")

    with collecting() as collector:
        environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        with tracing(environ, service="s", instance="i") as tracer:
            tracer.record(broken())
        assert (tracer.exported_total, tracer.dropped_total) == (1, 1)
    assert len(collector.spans) == 1
