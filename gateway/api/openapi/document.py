"""The OpenAPI 3.1 document of every route, from the types that the handlers themselves decode and encode.

Pure. Invariant: an administrators' route is described by the very operation that serves it; a test holds the routes
of the application against the paths of the document.
"""

import re
from collections.abc import Iterable, Mapping
from inspect import getdoc
from typing import Any, Final

import msgspec

from gateway.api import chat_shape, completion_shape
from gateway.api.admin.operation import Operation
from gateway.api.errors import ErrorAnswer
from gateway.api.models import Model, ModelList
from gateway.api.openapi import opaque
from gateway.api.schemas import ChatBody, CompletionBody
from gateway.db.idempotency import KEY_LENGTH_MAX

Json = dict[str, Any]

REF: Final = "#/components/schemas/{name}"
KEY: Final = "key"
CHAT: Final = opaque.described(ChatBody)
COMPLETION: Final = opaque.described(CompletionBody)
ERRORS: Final = {
    400: "Something in the request cannot be: `param` names it.",
    401: "No key, or none that is good.",
    403: "The key is good, and may not do this.",
    404: "There is nothing of that name, or not for this key.",
    405: "The path knows no such method.",
    408: "The body did not arrive in time.",
    409: "The name is taken, or the same call is being served.",
    413: "The body is too large.",
    415: "The body is not declared to be JSON.",
    429: "A limit is reached; `Retry-After` says when to come again.",
    500: "The server had an error.",
    502: "The worker was lost.",
    503: "Nobody can serve this now; `Retry-After` says when to come again.",
    504: "Nobody could start it in time.",
}
IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A repeat within a day is answered as before, with `idempotent-replayed: true`, and not done again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_LENGTH_MAX, "pattern": "^[ -~]*$"},
}


def build(operations: Iterable[Operation], *, version: str) -> Json:
    """The document of these administrators' operations and of the inference routes, whose order it keeps."""
    admin = list(operations)
    bodies = [operation.body for operation in admin if operation.body is not None]
    types = [
        ErrorAnswer, CHAT, chat_shape.Answer, COMPLETION, completion_shape.Answer, ModelList, Model,
        *bodies, *(operation.answer for operation in admin),
    ]  # fmt: skip
    refs, components = msgspec.json.schema_components(list(dict.fromkeys(types)), ref_template=REF)
    schemas = dict(zip(dict.fromkeys(types), refs, strict=True))
    paths: dict[str, Json] = _inference(schemas)
    for operation in admin:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _administration(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay",
            "version": version,
            "description": "OpenAI's API for tenants' keys under /v1, administration for admin keys under /admin/v1.",
        },
        "servers": [{"url": "/"}],
        "security": [{KEY: []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {KEY: {"type": "http", "scheme": "bearer", "description": "An API key: `fb-...`."}},
            "responses": {str(status): _response(text, schemas[ErrorAnswer]) for status, text in ERRORS.items()},
        },
    }


def _inference(schemas: Mapping[Any, Json]) -> dict[str, Json]:
    def generation(name: str, summary: str, body: Any, answer: Any) -> Json:
        whole = _response("The whole answer, or a stream of events.", schemas[answer])
        whole["content"]["text/event-stream"] = {"schema": {"type": "string"}}
        return {
            "post": {
                "operationId": name,
                "summary": summary,
                "tags": ["inference"],
                "requestBody": _body(schemas[body]),
                "responses": {"200": whole, **_errors(400, 401, 403, 404, 408, 413, 415, 429, 500, 502, 503, 504)},
            }
        }

    def models(name: str, summary: str, answer: Any, *errors: int) -> Json:
        responses = {"200": _response("What is served now.", schemas[answer]), **_errors(401, 403, 500, 503, *errors)}
        return {"get": {"operationId": name, "summary": summary, "tags": ["inference"], "responses": responses}}

    one = models("get_model", "Look at a model.", Model, 404)
    return {
        "/v1/chat/completions": generation("create_chat_completion", "Answer a conversation.", CHAT, chat_shape.Answer),
        "/v1/completions": generation("create_completion", "Continue a text.", COMPLETION, completion_shape.Answer),
        "/v1/models": models("list_models", "List the models that are ready.", ModelList),
        "/v1/models/{name}": {**one, "parameters": [_in_path("name")]},
    }


def _administration(operation: Operation, schemas: Mapping[Any, Json]) -> Json:
    parameters = [_in_path(name) for name in re.findall(r"{(\w+)}", operation.path)] + _in_query(operation.query)
    if operation.method == "POST":
        parameters.append(IDEMPOTENCY_KEY)
    described: Json = {
        "operationId": f"admin_{operation.run.__name__}",
        "summary": getdoc(operation.run) or "",
        "tags": ["administration"],
        "parameters": parameters,
        "responses": {
            str(operation.status): _response("Done.", schemas[operation.answer]),
            **_errors(400, 401, 403, 404, 408, 409, 413, 415, 500, 503),
        },
    }
    if operation.body is not None:
        described["requestBody"] = _body(schemas[operation.body])
    return described


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _in_query(kind: type[msgspec.Struct]) -> list[Json]:
    described: Json = msgspec.json.schema(kind)["$defs"][kind.__name__]
    required: list[str] = described.get("required", [])
    properties: dict[str, Json] = described["properties"]
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _without_null(schema)}
        for name, schema in properties.items()
    ]


def _without_null(schema: Json) -> Json:
    """The schema without null: a query cannot express null, it leaves the parameter out."""
    options: list[Json] = [option for option in schema.get("anyOf", ()) if option.get("type") != "null"]
    return options[0] if len(options) == 1 else schema


def _body(schema: Json) -> Json:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _response(description: str, schema: Json) -> Json:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(*statuses: int) -> dict[str, Json]:
    return {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses}
