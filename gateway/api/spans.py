"""The spans of a request in this gateway: the call itself, its admission, and its inference by a worker.

Owns their names and attributes: OpenTelemetry's conventions for HTTP servers and generative AI, and our own under
`forebay.`. Invariant: they hold ids, counts, constants of ours and names of served models, and nothing else that a
client sent.
"""

from collections.abc import Iterator
from typing import Final

from gateway.api import errors
from gateway.api.exchange import Exchange
from gateway.api.request_record import GONE, OK, RequestRecord
from gateway.errors import ClientGone, GatewayError
from shared.trace import Span, Value

PROVIDER: Final = "forebay"


def spans(
    record: RequestRecord, error: BaseException | None, *, path: str, operation: str, now_s: float
) -> Iterator[Span]:
    """The spans of a sampled request that has ended; `error` is what was raised."""
    outcome = record.outcome if error is None else errors.outcome(error)
    status = 200 if error is None or record.answering else _status(error)
    failed = status is not None and (status >= 500 or (status == 200 and outcome not in {OK, GONE}))
    fault = outcome if failed else None
    yield Span(
        name=f"POST {path}",
        kind="server",
        context=record.trace,
        parent=record.caller,
        start_s=record.arrived_s,
        end_s=now_s,
        attributes=_served(record, path, status, outcome),
        error=fault,
    )
    if record.asked_s is None:
        return
    admitted_s = record.admitted_s
    yield Span(
        name="admission",
        context=record.trace.child(),
        parent=record.trace,
        start_s=record.asked_s,
        end_s=now_s if admitted_s is None else admitted_s,
        attributes={"forebay.outcome": outcome if admitted_s is None else OK},
        error=fault if admitted_s is None else None,
    )
    if admitted_s is not None and record.exchange is not None:
        yield Span(
            name=f"{operation} {record.model}",
            kind="client",
            context=record.inference,
            parent=record.trace,
            start_s=admitted_s,
            end_s=now_s,
            attributes={"gen_ai.operation.name": operation, **_inferred(record, record.exchange, outcome)},
            error=fault,
        )


def _status(error: BaseException) -> int | None:
    """The status that was sent; None if the client was gone."""
    if isinstance(error, ClientGone):
        return None
    if isinstance(error, GatewayError):
        return error.status
    return 500 if isinstance(error, Exception) else None


def _served(record: RequestRecord, path: str, status: int | None, outcome: str) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "http.request.method": "POST",
        "http.route": path,
        "url.path": path,
        "url.scheme": "http",
        "forebay.request.id": record.request,
        "forebay.outcome": outcome,
    }
    if status is not None:
        attributes["http.response.status_code"] = status
    if record.tenant is not None:
        attributes["forebay.tenant.id"] = record.tenant
    return attributes


def _inferred(record: RequestRecord, exchange: Exchange, outcome: str) -> dict[str, Value]:
    prompt_tokens, completion_tokens = exchange.used
    attributes: dict[str, Value] = {
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.id": record.request,
        "gen_ai.request.stream": record.stream,
        "gen_ai.request.choice.count": exchange.choices,
        "gen_ai.request.max_tokens": exchange.max_tokens,
        "gen_ai.usage.input_tokens": prompt_tokens,
        "gen_ai.usage.output_tokens": completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": exchange.cached_tokens,
        "forebay.outcome": outcome,
    }
    if exchange.finishes:
        attributes["gen_ai.response.finish_reasons"] = tuple(exchange.finishes)
    if exchange.first_s is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = exchange.first_s - record.arrived_s
    return attributes
