"""GET /v1/models and /v1/models/{id}: the models that a worker is ready to serve, by name."""

from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.di import NamedDependency
from litestar.params import FromPath

from gateway.api import guards
from gateway.api.services import Services
from gateway.errors import ModelNotFound
from gateway.protocols import Principal


class Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "forebay"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[Model]


@get("/v1/models")
async def list_models(request: Request[Any, Any, Any], services: NamedDependency[Services]) -> Response[bytes]:
    principal = await guards.caller(request.scope, services)
    return _json(ModelList(data=_ready(services, principal)))


@get("/v1/models/{name:path}")
async def get_model(
    request: Request[Any, Any, Any], services: NamedDependency[Services], name: FromPath[str]
) -> Response[bytes]:
    principal = await guards.caller(request.scope, services)
    wanted = name.removeprefix("/")
    for model in _ready(services, principal):
        if model.id == wanted:
            return _json(model)
    raise ModelNotFound(f"The model `{wanted[:80]}` does not exist or you have no access to it.", param="model")


def _ready(services: Services, principal: Principal) -> list[Model]:
    found: dict[str, Model] = {}
    for ready in services.dispatcher.fleet.models():
        if services.served_models.hides(principal.models, ready.name):
            continue
        if served := services.served_models.get(ready.digest):
            found.setdefault(ready.name, Model(id=ready.name, created=served.created_s))
    return [found[name] for name in sorted(found)]


def _json(value: Model | ModelList) -> Response[bytes]:
    return Response(msgspec.json.encode(value), status_code=200, media_type="application/json")
