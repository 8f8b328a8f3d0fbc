"""What is the same for every request of one key for one model: limits, sizes, and the constant part of a job. Computed
once, and reused until the key or the model changes.

Pure. Invariant: an entitlement is used only with the same principal and model objects that it was made from, so
replacing either one replaces it.
"""

import hashlib
import hmac
import uuid
from dataclasses import dataclass
from typing import Final

from gateway.admission import sizes
from gateway.admission.limiter import Limit
from gateway.admission.served_models import ServedModel
from gateway.admission.sizes import Sizes
from gateway.protocols import Principal

CACHE_SALT_LABEL: Final = b"forebay cache salt v1"
ENTITLEMENTS_MAX: Final = 10_000


@dataclass(slots=True, frozen=True)
class Entitlement:
    principal: Principal
    model: ServedModel
    model_id: uuid.UUID
    limits: tuple[Limit, ...]  # those that concern the model
    sizes: Sizes
    tenant: str
    key: str
    cache_salt: bytes


class Entitlements:
    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Entitlement] = {}

    def of(self, principal: Principal, model: ServedModel) -> Entitlement:
        name = principal.public_id, model.digest
        entitlement = self._kept.get(name)
        if entitlement is None or entitlement.principal is not principal or entitlement.model is not model:
            if len(self._kept) >= ENTITLEMENTS_MAX:
                self._kept.clear()
            entitlement = self._kept[name] = _entitlement(principal, model)
        return entitlement


def _entitlement(principal: Principal, model: ServedModel) -> Entitlement:
    model_id = uuid.UUID(model.id)
    return Entitlement(
        principal=principal,
        model=model,
        model_id=model_id,
        limits=tuple(limit for limit in principal.limits if limit.concerns(model_id)),
        sizes=sizes.of(principal.limits, model_id, model.encoder.context_max),
        tenant=str(principal.tenant_id),
        key=str(principal.key_id),
        cache_salt=_cache_salt(principal.tenant_id),
    )


def _cache_salt(tenant_id: uuid.UUID) -> bytes:
    """The salt of the tenant's cached blocks. Tenants never share blocks, so that none can find out by timing what
    another has sent. It is the same on every gateway and need not be secret (docs/adr/0007).
    """
    return hmac.digest(CACHE_SALT_LABEL, tenant_id.bytes, hashlib.sha256)[:16]
