"""What is recorded of one request for its line in the log and its count in the metrics.

Created when the request arrives and ended after its work, whether with a refusal, an answer or the end of a stream, so
each request is logged once and counted once. Holds no prompt, no answer and no key.
"""

from dataclasses import dataclass, field
from time import monotonic
from typing import Final, Self
from uuid import UUID

from litestar.types import Scope

from gateway.api import errors, tracing
from gateway.api.exchange import Exchange
from gateway.api.requestid import client_id
from gateway.errors import ClientGone, GatewayError
from gateway.metrics import UNKNOWN_MODEL, Metrics
from shared import log
from shared.ids import uuid7
from shared.trace import Tracer
from shared.traceparent import Context

OK: Final = "ok"
GONE: Final = ClientGone.code or ""

logger = log.get("gateway.api")


@dataclass(slots=True)
class RequestRecord:
    """`outcome` is GONE until it is known: a stream that was not finished was left by its client."""

    metrics: Metrics
    trace: Context
    caller: Context | None = None
    client_request: str | None = None
    request_id: UUID = field(default_factory=uuid7)
    arrived_s: float = field(default_factory=monotonic)
    tenant: str | None = None
    model: str = UNKNOWN_MODEL
    stream: bool = False
    answering: bool = False  # headers have been sent, so an error can no longer have a status
    asked_s: float | None = None  # when admission began
    admitted_s: float | None = None
    exchange: Exchange | None = None
    outcome: str = GONE
    request: str = field(init=False)  # its id, as it is written
    inference: Context = field(init=False)  # what workers do for it

    def __post_init__(self) -> None:
        self.request = str(self.request_id)
        self.inference = self.trace.child()

    @classmethod
    def begin(cls, scope: Scope, metrics: Metrics, tracer: Tracer) -> Self:
        caller = tracing.caller(scope)
        return cls(metrics, tracer.begin(caller), caller, client_id(scope))

    def tokens_used(self) -> int:
        return 0 if self.exchange is None else self.exchange.tokens_used

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            self.outcome = errors.outcome(error)
        self.metrics.requests.labels(self.model, self.outcome).inc()
        broken = isinstance(error, GatewayError) and error.status >= 500
        (logger.warning if broken else logger.info)(
            "request.finished",
            request=self.request,
            trace=self.trace.trace,
            client_request=self.client_request,
            tenant=self.tenant,
            model=self.model,
            stream=self.stream,
            outcome=self.outcome,
            tokens=self.tokens_used(),
            total_ms=int((monotonic() - self.arrived_s) * 1_000),
        )
