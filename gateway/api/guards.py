"""Who may do what. Handlers call these first, before they read a body."""

from typing import Final

from litestar.types import Scope

from gateway import address, headers
from gateway.address import Address
from gateway.api.services import Services
from gateway.errors import Forbidden
from gateway.protocols import Principal

INFERENCE: Final = "inference"
ADMIN: Final = "admin"
ADMIN_READ: Final = "admin:read"
ONLY_INFERENCE: Final = frozenset({INFERENCE})


async def caller(scope: Scope, services: Services) -> Principal:
    """The principal of the Authorization header, if its key may be used from this address. Raises InvalidKey,
    Unavailable, Forbidden.
    """
    principal = await services.principals.resolve(headers.values(scope, b"authorization"))
    if principal.networks is not None and not address.is_in(origin(scope, services), principal.networks):
        raise Forbidden("This API key may not be used from your address.", code="ip_not_authorized")
    return principal


async def inference(scope: Scope, services: Services) -> Principal:
    """A caller that may use models. Raises InvalidKey, Unavailable, Forbidden."""
    principal = await caller(scope, services)
    if principal.scopes != ONLY_INFERENCE:
        raise Forbidden("An admin key cannot call models; use a tenant's key.")
    return principal


async def administrator(scope: Scope, services: Services, *, changes: bool) -> Principal:
    """A caller that may read administrators' data or, with `changes`, change it. Raises InvalidKey, Unavailable,
    Forbidden.
    """
    principal = await caller(scope, services)
    if ADMIN not in principal.scopes and (changes or ADMIN_READ not in principal.scopes):
        raise Forbidden(
            "This API key may not administer." if not changes else "This API key may not change anything here."
        )
    return principal


def origin(scope: Scope, services: Services) -> Address | None:
    peer = scope.get("client")
    forwarded = headers.values(scope, b"x-forwarded-for")
    return address.client(peer[0] if peer else "", forwarded, services.settings.trusted_networks)
