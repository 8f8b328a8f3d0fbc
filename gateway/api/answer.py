"""One request to either endpoint, from key to last byte: key, place at the gate, body, admission, dispatch, answer.

Runs beside Litestar, not in it (docs/adr/0019). The body is not looked at before the key is known to be good. From then
on the client is watched, and when it hangs up, everything that was begun for it is cancelled. What a request reserved
is given back before its last bytes are sent.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Final, Generic, TypeVar

import msgspec
from litestar.types import Receive, Scope, Send

from gateway import headers
from gateway.admission.generation import Generation
from gateway.api import body, client_timeout, errors, guards, requestid
from gateway.api.exchange import Exchange
from gateway.api.hangup import Hangup
from gateway.api.request_record import OK, RequestRecord
from gateway.api.schemas import Body
from gateway.api.services import Services
from gateway.api.shape import AnswerSpec, Choice, Shape, Usage, event
from gateway.api.spans import spans
from gateway.api.sse import EventStream
from gateway.dispatch.terms import Terms
from gateway.errors import ClientGone, GatewayError
from gateway.protocols import Principal
from shared import log

logger = log.get("gateway.api")

B = TypeVar("B", bound=Body)

JSON: Final = (b"content-type", b"application/json")


@dataclass(slots=True, frozen=True)
class Endpoint(Generic[B]):
    """One dialect: how its bodies are read and its answers written."""

    path: str
    operation: str  # by OpenTelemetry's name
    decoder: "msgspec.json.Decoder[B]"
    lenient: "msgspec.json.Decoder[Any]"  # skips fields that are not known
    parse: Callable[[B], Generation]
    shape: Callable[[AnswerSpec], Shape]


class Answers:
    """The ASGI application of one endpoint."""

    def __init__(self, services: Services, endpoint: Endpoint[Any]) -> None:
        self._services = services
        self._settings = services.settings
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request from its first line to its last byte. Raises nothing but a cancel from outside."""
        record = RequestRecord.begin(scope, self._services.metrics, self._services.tracer)
        try:
            content = await self._served(record, scope, receive, send)
        except Exception as error:  # noqa: BLE001 - the outermost place: every request gets its answer and its line
            self._ended(record, error)
            if not record.answering:
                shown = error if isinstance(error, GatewayError) else _unexpected(error, record, scope)
                await _reply(send, record, errors.status(shown), errors.headers(shown), errors.encode(shown))
        except BaseException as error:
            self._ended(record, error)
            raise
        else:
            self._ended(record, None)
            if content is not None:
                assert record.exchange is not None
                await _reply(send, record, 200, record.exchange.headers, content)

    def _ended(self, record: RequestRecord, error: BaseException | None) -> None:
        if record.trace.sampled:
            endpoint = self._endpoint
            recorded = spans(record, error, path=endpoint.path, operation=endpoint.operation, now_s=monotonic())
            self._services.tracer.record(recorded)
        record.end(error)

    async def _served(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> bytes | None:
        """The whole answer, or None if it has been streamed. Raises GatewayError."""
        principal, data = await self._let_in(record, scope, receive)
        try:
            terms = client_timeout.terms(scope, principal.tier_bounds)
            request_body, generation = self._parsed(record, principal, data)
            hangup = Hangup(receive)
            try:
                exchange = await self._begin(record, principal, generation, terms)
                shape = self._endpoint.shape(_answer_spec(record, request_body, generation, exchange.choices))
                if not record.stream:
                    content = await _whole(exchange, shape)
                    record.outcome = OK
                    return content
                await exchange.await_first()
                await self._stream(record, exchange, shape, send, hangup)
            except asyncio.CancelledError:
                if hangup.explains_cancel():
                    raise ClientGone("The client closed the connection.") from None
                raise
            finally:
                hangup.stop()
                if record.exchange is not None:
                    await record.exchange.close()
        finally:
            self._services.gate.leave()
        return None

    async def _let_in(self, record: RequestRecord, scope: Scope, receive: Receive) -> tuple[Principal, bytes]:
        """The caller and the body, with a place taken at the gate. Raises GatewayError; then no place is taken."""
        gate, settings, inside = self._services.gate, self._settings, False
        try:
            principal = await guards.inference(scope, self._services)
            gate.enter()  # not before: whoever has no key could take all places
            inside = True
            record.tenant = tenant = str(principal.tenant_id)
            gate.start_reading(tenant)
            try:
                data = await body.read(scope, receive, bytes_max=settings.body_bytes_max, seconds=settings.body_s)
            finally:
                gate.stop_reading(tenant)
        except BaseException as error:
            if inside:
                gate.leave()
            if isinstance(error, GatewayError):
                await body.refuse(scope, receive, error, self._services.connections)
            raise
        return principal, data

    def _parsed(self, record: RequestRecord, principal: Principal, data: bytes) -> tuple[Body, Generation]:
        endpoint = self._endpoint
        request_body = body.decode(data, endpoint.lenient if principal.ignore_unknown_fields else endpoint.decoder)
        record.stream = bool(request_body.stream)
        if self._services.dispatcher.fleet.find(request_body.model):  # otherwise it is the client's text, and no label
            record.model = request_body.model
        return request_body, endpoint.parse(request_body)

    async def _begin(
        self, record: RequestRecord, principal: Principal, generation: Generation, terms: Terms
    ) -> Exchange:
        """Admit and dispatch. `record` notes the exchange before anything can fail, so that it is always closed."""
        services = self._services
        if terms.retry:
            services.metrics.client_retries.labels(record.model).inc()
        record.asked_s = monotonic()
        admitted = await services.admission.admit(
            principal,
            record.request_id,
            generation,
            wait_s=terms.timeout_s,
            trace=record.inference,
            check=lambda job, pool: services.dispatcher.check_load(
                job, pool, terms.after(monotonic() - record.arrived_s)
            ),
        )
        record.admitted_s = monotonic()
        record.exchange = exchange = Exchange(
            admitted,
            admission=services.admission,
            dispatcher=services.dispatcher,
            metrics=services.metrics,
            arrived_s=record.arrived_s,
        )
        await exchange.open(terms, self._settings.run_s)
        return exchange

    async def _stream(
        self, record: RequestRecord, exchange: Exchange, shape: Shape, send: Send, hangup: Hangup
    ) -> None:
        settings, streams_open = self._settings, self._services.metrics.streams_open
        stream = EventStream(send, hangup, keepalive_s=settings.keepalive_s, stall_s=settings.stall_s)
        streams_open.inc()
        record.answering = True
        try:
            await stream.start(_lines(record, exchange.headers))
            data, last = shape.opening(), False
            if exchange.has_first:  # each write is a turn of the server's threads before the first token is out
                events, last = await _events(exchange, shape, record)
                data += events
            while not last:
                await stream.put(data)
                data, last = await _events(exchange, shape, record)
            await stream.end(data)
        finally:
            stream.close()
            streams_open.dec()


def _answer_spec(record: RequestRecord, request_body: Body, generation: Generation, choices: int) -> AnswerSpec:
    return AnswerSpec(
        request=record.request,
        created_s=int(time()),
        model=request_body.model,
        choices=choices,
        logprobs=generation.logprobs is not None,
        include_usage=bool(request_body.stream_options and request_body.stream_options.include_usage),
    )


async def _whole(exchange: Exchange, shape: Shape) -> bytes:
    choices = [Choice(index) for index in range(exchange.choices)]
    while chunks := await exchange.gathered():
        for chunk in chunks:
            choices[chunk.choice].add(chunk)
    return shape.whole(choices, Usage.of(await exchange.end()))


async def _events(exchange: Exchange, shape: Shape, record: RequestRecord) -> tuple[bytes, bool]:
    """The next events, and whether they are the last. An error becomes the last one, without [DONE]."""
    try:
        while chunks := await exchange.next():
            if data := b"".join([shape.events(chunk) for chunk in chunks]):
                return data, False
        closing = shape.closing(Usage.of(await exchange.end()))
    except GatewayError as error:
        shown = error
    except Exception:  # the last place that can tell the client
        logger.exception("stream.crashed", request=record.request, trace=record.trace.trace)
        shown = GatewayError(errors.UNEXPECTED)
    else:
        record.outcome = OK
        return closing, True
    record.outcome = errors.outcome(shown)
    await exchange.close()
    return event(errors.encode(shown)), True


def _unexpected(error: Exception, record: RequestRecord, scope: Scope) -> GatewayError:
    """Worth one more try, unless tokens were used for it: they are paid for, and would be again."""
    retry = not record.tokens_used() and not client_timeout.is_retry(headers.values(scope, client_timeout.RETRY_COUNT))
    return errors.unexpected(error, request=record.request, trace=record.trace.trace, retry=retry)


async def _reply(send: Send, record: RequestRecord, status: int, headers: dict[str, str], content: bytes) -> None:
    lines = [JSON, (b"content-length", b"%d" % len(content)), *_lines(record, headers)]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _lines(record: RequestRecord, headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    lines = requestid.header_lines(record.request, record.trace.trace)
    lines += [(name.encode(), value.encode()) for name, value in headers.items()]
    return lines
