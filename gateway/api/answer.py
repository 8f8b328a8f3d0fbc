"""What both endpoints do with a request: key, place, body, admission, dispatch, answer, in this order.

Nothing of the body is looked at before the key is known to be good. The client is watched from the moment its body
is there; when it hangs up, everything that was begun for it ends.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic, time
from typing import Any, Generic, TypeVar

import msgspec
from litestar import Request, Response

from gateway.admission.generation import Generation
from gateway.api import body, errors, patience, spans, tracing
from gateway.api.exchange import Exchange
from gateway.api.hangup import Hangup
from gateway.api.requestid import client_id, request_id
from gateway.api.schemas import Body
from gateway.api.shape import Choice, Heading, Shape, Usage, event
from gateway.api.sse import EventStream
from gateway.api.visit import OK, Visit
from gateway.auth import guards
from gateway.dispatch.terms import Terms
from gateway.errors import GatewayError
from gateway.seams import Principal
from gateway.services import Services
from shared import log

logger = log.get("gateway.api")

B = TypeVar("B", bound=Body)


@dataclass(slots=True, frozen=True)
class Endpoint(Generic[B]):
    """One dialect: how its bodies are read and its answers written."""

    path: str
    operation: str  # by OpenTelemetry's name
    decoder: "msgspec.json.Decoder[B]"
    lenient: "msgspec.json.Decoder[Any]"  # skips fields that are not known
    parse: Callable[[B], Generation]
    shape: Callable[[Heading], Shape]


async def answer(request: Request[Any, Any, Any], services: Services, endpoint: Endpoint[B]) -> Response[bytes]:
    """The response to `request`, whole or streamed. Raises GatewayError as long as nothing has been sent."""
    settings = services.settings
    stack = AsyncExitStack()
    async with stack:
        visit = stack.enter_context(_visit(request, services))
        if visit.trace.sampled:
            traced = spans.recorded(visit, services.tracer, path=endpoint.path, operation=endpoint.operation)
            stack.enter_context(traced)
        request.scope["state"][errors.TOKENS_USED] = visit.tokens_used
        async with body.refusing(request):
            principal = await guards.inference(request, services)
            stack.enter_context(services.gate.place())  # not before: whoever has no key could take them all
            visit.tenant = str(principal.tenant_id)
            data = await body.read(request, bytes_max=settings.body_bytes_max, seconds=settings.body_s)
        asked = body.decode(data, endpoint.lenient if principal.ignore_unknown_fields else endpoint.decoder)
        _note(visit, asked, services)
        generation = endpoint.parse(asked)
        hangup = await stack.enter_async_context(Hangup(request.receive))
        with hangup.cancels():
            terms = patience.terms(request.scope, principal.tier_bounds)
            exchange = await _begin(stack, services, visit, principal, generation=generation, terms=terms)
            shape = endpoint.shape(_heading(visit, asked, generation, exchange.choices))
            content = b"" if asked.stream else await _whole(exchange, shape)
        if asked.stream:
            return _streamed(stack, services, visit, shape, hangup)
        visit.outcome = OK
        return Response(content, status_code=200, media_type="application/json", headers=exchange.headers)
    raise AssertionError  # for the type checker, which thinks that leaving the stack may swallow an error


def _visit(request: Request[Any, Any, Any], services: Services) -> Visit:
    caller = tracing.caller(request.scope)
    trace = tracing.begin(request.scope, caller, services.tracer)
    return Visit(request_id(request.scope), services.metrics, trace, caller, client_id(request.scope))


def _note(visit: Visit, asked: Body, services: Services) -> None:
    visit.stream = bool(asked.stream)
    if services.dispatcher.fleet.find(asked.model):  # otherwise it is the client's text, and no label
        visit.model = asked.model


async def _begin(
    stack: AsyncExitStack,
    services: Services,
    visit: Visit,
    principal: Principal,
    *,
    generation: Generation,
    terms: Terms,
) -> Exchange:
    """Admit and dispatch. The exchange is on `stack` before anybody can lose it."""
    if terms.retry:
        services.metrics.client_retries.labels(visit.model).inc()
    visit.asked_s = monotonic()
    admitted = await services.admission.admit(
        principal,
        visit.request_id,
        generation,
        wait_s=terms.patience_s,
        trace=visit.inference,
        check=lambda job, pool: services.dispatcher.check_load(job, pool, terms.after(monotonic() - visit.arrived_s)),
    )
    visit.admitted_s = monotonic()
    exchange = Exchange(
        admitted,
        admission=services.admission,
        dispatcher=services.dispatcher,
        metrics=services.metrics,
        terms=terms,
        run_s=services.settings.run_s,
        arrived_s=visit.arrived_s,
    )
    visit.exchange = exchange
    return await stack.enter_async_context(exchange)


def _heading(visit: Visit, asked: Body, generation: Generation, choices: int) -> Heading:
    return Heading(
        request=str(visit.request_id),
        created_s=int(time()),
        model=asked.model,
        choices=choices,
        logprobs=generation.logprobs is not None,
        include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
    )


async def _whole(exchange: Exchange, shape: Shape) -> bytes:
    choices = [Choice(index) for index in range(exchange.choices)]
    async for chunks in exchange.chunks():
        for chunk in chunks:
            choices[chunk.choice].add(chunk)
    return shape.whole(choices, Usage.of(await exchange.end()))


def _streamed(stack: AsyncExitStack, services: Services, visit: Visit, shape: Shape, hangup: Hangup) -> EventStream:
    exchange = visit.exchange
    assert exchange is not None
    stack.enter_context(services.metrics.streams_open.track_inprogress())
    return EventStream(
        _events(exchange, shape, visit),
        owner=stack.pop_all(),
        hangup=hangup,
        headers=exchange.headers,
        keepalive_s=services.settings.keepalive_s,
        stall_s=services.settings.stall_s,
    )


async def _events(exchange: Exchange, shape: Shape, visit: Visit) -> AsyncGenerator[bytes, None]:
    """The stream's bytes. An error ends it with one error event and without [DONE]."""
    try:
        yield shape.opening()
        async for chunks in exchange.chunks():
            if data := b"".join([shape.events(chunk) for chunk in chunks]):
                yield data
        closing = shape.closing(Usage.of(await exchange.end()))
        visit.outcome = OK
        yield closing
    except GatewayError as error:
        visit.outcome = errors.outcome(error)
        await exchange.close()
        yield event(errors.encode(error))
    except Exception as error:  # the last place that can tell the client
        visit.outcome = errors.outcome(error)
        logger.exception("stream.crashed", request=str(visit.request_id), trace=visit.trace.trace)
        await exchange.close()
        yield event(errors.encode(GatewayError(errors.UNEXPECTED)))
