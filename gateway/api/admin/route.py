"""Turns functions into routes.

`get`, `post`, `put`, `patch` and `delete` take an async function of `call` and, if it needs them, `query` and `body`.
Its annotations are the types of its input and its answer, and its docstring is its description. The OpenAPI document is
made from the same annotations, so the two cannot differ.
"""

from collections.abc import Callable
from typing import Any, Final, Literal, get_type_hints

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.handlers import HTTPRouteHandler

from gateway.api.admin.operation import NoQuery, Operation, Run
from gateway.api.admin.serving import serve
from gateway.api.services import Services

PREFIX: Final = "/admin/v1"
OPT: Final = "operation"

HttpMethod = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Wrap = Callable[[Run], HTTPRouteHandler]


def get(path: str) -> Wrap:
    return _route("GET", path)


def post(path: str, *, status: int = 201) -> Wrap:
    return _route("POST", path, status)


def put(path: str) -> Wrap:
    return _route("PUT", path)


def patch(path: str) -> Wrap:
    return _route("PATCH", path)


def delete(path: str) -> Wrap:
    return _route("DELETE", path)


def _route(method: HttpMethod, path: str, status: int = 200) -> Wrap:
    def wrap(run: Run) -> HTTPRouteHandler:
        types = get_type_hints(run, include_extras=True)
        operation = Operation(
            method=method,
            path=PREFIX + path,
            status=status,
            run=run,
            answer=types["return"],
            query=types.get("query", NoQuery),
            body=types.get("body"),
        )

        async def handle(request: Request[Any, Any, Any], services: NamedDependency[Services]) -> Response[bytes]:
            return await serve(request, services, operation)

        route = HTTPRouteHandler(
            operation.path.replace("}", ":str}"), http_method=[method], status_code=status, opt={OPT: operation}
        )
        return route(handle)

    return wrap
