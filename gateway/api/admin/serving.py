"""How every call of the administrators' API is served: key, place at the gate, body, one transaction, answer.

A call with an Idempotency-Key is carried out once: its answer is stored in the transaction of its change, so a repeat
gets the same answer and changes nothing, and a call that failed or was cut off has left nothing behind and may be
repeated. Does not know what is administered.
"""

import asyncio
import hashlib
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import msgspec
from litestar import Request, Response
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway import headers
from gateway.api import body, guards, tracing
from gateway.api.admin.operation import Call, NoQuery, Operation
from gateway.api.requestid import request_id
from gateway.api.services import Services
from gateway.db import idempotency, pools
from gateway.db.audit import Author
from gateway.db.catalogue import AlreadyExists, CatalogueError, NotFound
from gateway.db.catalogue.transaction import transaction
from gateway.errors import Conflict, GatewayError, InvalidRequest, ObjectNotFound, Unavailable
from gateway.keys import redact
from gateway.protocols import Principal
from shared import log

logger = log.get("gateway.admin")

CALL_S: Final = 15.0
PLACES: Final = 64  # for administrators, beyond the places of requests: a full gateway can still be managed
RETRY_AFTER_MS: Final = 1_000
REPLAYED: Final = {"idempotent-replayed": "true"}

_FAULTS: Final = (SQLAlchemyError, *pools.AWAY)


@runtime_checkable
class ShownOnce(Protocol):
    """An answer with a secret in it."""

    def without_secret(self) -> msgspec.Struct:
        """The same answer, fit to be stored and given again."""
        ...


async def serve(request: Request[Any, Any, Any], services: Services, operation: Operation) -> Response[bytes]:
    """The response to `request`. Raises GatewayError."""
    async with AsyncExitStack() as stack:
        try:
            principal = await guards.administrator(request.scope, services, changes=operation.changes)
            services.gate.enter(beyond=PLACES)
            stack.callback(services.gate.leave)
            data = await _body(request, services, operation)
        except GatewayError as error:
            await body.refuse(request.scope, request.receive, error, services.connections)
            raise
        arguments = _arguments(request, operation, data)
        repeatable = _repeatable(request, operation, principal, data)
        try:
            async with asyncio.timeout(CALL_S), transaction(services.database, "this") as connection:
                call = _call(request, services, connection, principal)
                response = await _once(connection, repeatable, operation, call, arguments)
        except CatalogueError as error:
            raise _as_gateway_error(error) from error
        except _FAULTS as error:
            logger.warning(
                "admin.not_served",
                path=operation.path,
                error=type(error).__name__,
                request=str(request_id(request.scope)),
                trace=tracing.trace_id(request.scope),
            )
            raise Unavailable("Postgres cannot be asked at the moment.", retry_after_ms=RETRY_AFTER_MS) from error
    logger.info(
        "admin.served",
        method=operation.method,
        path=operation.path,
        status=response.status_code,
        actor=call.author.actor,
        request=str(call.author.request_id),
        trace=tracing.trace_id(request.scope),
    )
    return response


async def _body(request: Request[Any, Any, Any], services: Services, operation: Operation) -> bytes:
    if operation.body is None:
        return b""
    settings = services.settings
    return await body.read(request.scope, request.receive, bytes_max=settings.body_bytes_max, seconds=settings.body_s)


def _arguments(request: Request[Any, Any, Any], operation: Operation, data: bytes) -> dict[str, msgspec.Struct]:
    """The handler's further arguments, `query` and `body`. Raises InvalidRequest."""
    query = body.decode_query(request.query_params.multi_items(), operation.query)
    arguments: dict[str, msgspec.Struct] = {} if isinstance(query, NoQuery) else {"query": query}
    if operation.body is not None:
        arguments["body"] = body.decode(data, msgspec.json.Decoder(operation.body))
    return arguments


def _call(
    request: Request[Any, Any, Any], services: Services, connection: AsyncConnection, principal: Principal
) -> Call:
    origin = guards.origin(request.scope, services)
    author = Author(
        actor=f"key:{principal.public_id}",
        ip=None if origin is None else str(origin),
        request_id=request_id(request.scope),
    )
    return Call(connection, author, {name: str(value) for name, value in request.path_params.items()}, services)


@dataclass(slots=True, frozen=True)
class _Repeatable:
    """A call with an Idempotency-Key."""

    owner: idempotency.Owner
    fingerprint: bytes


def _repeatable(
    request: Request[Any, Any, Any], operation: Operation, principal: Principal, data: bytes
) -> _Repeatable | None:
    """Raises InvalidRequest for a malformed Idempotency-Key."""
    keys = headers.values(request.scope, b"idempotency-key")
    if operation.method != "POST" or not keys:
        return None
    if len(keys) > 1 or not _is_name(keys[0]):
        raise InvalidRequest(
            f"An Idempotency-Key is given once, has 1 to {idempotency.KEY_LENGTH_MAX} characters, and is no API key.",
            param="Idempotency-Key",
        )
    digest = hashlib.sha256()
    for part in (operation.method.encode(), request.scope["path"].encode(), request.scope["query_string"], data):
        digest.update(len(part).to_bytes(8) + part)
    return _Repeatable(idempotency.Owner(principal.tenant_id, keys[0]), digest.digest())


def _is_name(text: str) -> bool:
    """Whether a text may be an Idempotency-Key. It is stored, so it must not be a secret."""
    short = 1 <= len(text) <= idempotency.KEY_LENGTH_MAX
    return short and text.isascii() and text.isprintable() and redact(text) == text


async def _once(
    connection: AsyncConnection,
    repeatable: _Repeatable | None,
    operation: Operation,
    call: Call,
    arguments: dict[str, msgspec.Struct],
) -> Response[bytes]:
    """Carry out the call unless it was already. Raises Conflict, InvalidRequest, CatalogueError."""
    if repeatable is None:
        return _response(await operation.run(call, **arguments), operation.status)
    if not await idempotency.claim(connection, repeatable.owner):
        raise Conflict(
            "A request with this Idempotency-Key is being served.",
            code="idempotency_in_progress",
            retry_after_ms=RETRY_AFTER_MS,
        )
    stored = await idempotency.find(connection, repeatable.owner)
    if stored is not None:
        if stored.fingerprint != repeatable.fingerprint:
            raise InvalidRequest(
                "This Idempotency-Key was used for another request.",
                param="Idempotency-Key",
                code="idempotency_mismatch",
            )
        return Response(stored.body, status_code=stored.status, media_type="application/json", headers=REPLAYED)
    answer = await operation.run(call, **arguments)
    kept = msgspec.json.encode(answer.without_secret() if isinstance(answer, ShownOnce) else answer)
    await idempotency.keep(
        connection, repeatable.owner, fingerprint=repeatable.fingerprint, status=operation.status, body=kept
    )
    return _response(answer, operation.status)


def _response(answer: msgspec.Struct, status: int) -> Response[bytes]:
    return Response(msgspec.json.encode(answer), status_code=status, media_type="application/json")


def _as_gateway_error(error: CatalogueError) -> GatewayError:
    message = f"{str(error)[:1].upper()}{str(error)[1:]}."
    if isinstance(error, NotFound):
        return ObjectNotFound(message)
    if isinstance(error, AlreadyExists):
        return Conflict(message, code="already_exists")
    return InvalidRequest(message, code="invalid_value")
