"""Who may do what. Handlers call these first, before they look at a body."""

from typing import Any

from litestar import Request

from gateway import headers
from gateway.errors import Forbidden
from gateway.seams import Principal, Principals

ADMIN = "admin"


async def caller(request: Request[Any, Any, Any], principals: Principals) -> Principal:
    """Whoever the Authorization header names. Raises InvalidKey, Unavailable."""
    return await principals.resolve(headers.values(request.scope, b"authorization"))


async def inference(request: Request[Any, Any, Any], principals: Principals) -> Principal:
    """A caller that may use models. Raises InvalidKey, Unavailable, Forbidden."""
    principal = await caller(request, principals)
    if ADMIN in principal.scopes:
        raise Forbidden("An admin key cannot call models; use a tenant's key.")
    return principal
