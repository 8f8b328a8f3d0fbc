"""An OpenTelemetry collector inside the test: takes OTLP over HTTP and keeps the spans."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass(frozen=True)
class ExportedSpan:
    """A span as it arrived."""

    service: str
    name: str
    kind: int
    trace: str
    span: str
    parent: str
    state: str
    start_ns: int
    end_ns: int
    failed: bool
    attributes: dict[str, object]


@dataclass
class Collector:
    """`status` is its answer; `raw` are all bytes that it received."""

    url: str = ""
    status: int = 200
    raw: list[bytes] = field(default_factory=list)
    spans: list[ExportedSpan] = field(default_factory=list)
    came: threading.Event = field(default_factory=threading.Event)

    @property
    def environ(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def take(self, data: bytes) -> None:
        self.raw.append(data)
        if self.status == 200:
            self.spans += _spans(ExportTraceServiceRequest.FromString(data))
        self.came.set()

    def of(self, trace: str) -> dict[str, ExportedSpan]:
        """The spans of a trace by name; fails if a name occurs twice."""
        found = [span for span in self.spans if span.trace == trace]
        assert len({span.name for span in found}) == len(found), found
        return {span.name: span for span in found}


def _value(value: AnyValue) -> object:
    if value.WhichOneof("value") == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, value.WhichOneof("value"))


def _spans(request: ExportTraceServiceRequest) -> Iterator[ExportedSpan]:
    for group in request.resource_spans:
        resource = {item.key: _value(item.value) for item in group.resource.attributes}
        for span in (span for scope in group.scope_spans for span in scope.spans):
            yield ExportedSpan(
                service=str(resource["service.name"]),
                name=span.name,
                kind=span.kind,
                trace=span.trace_id.hex(),
                span=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                state=span.trace_state,
                start_ns=span.start_time_unix_nano,
                end_ns=span.end_time_unix_nano,
                failed=span.status.code == 2,
                attributes={item.key: _value(item.value) for item in span.attributes},
            )


@contextmanager
def collecting(collector: Collector | None = None) -> Iterator[Collector]:
    collector = collector or Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
