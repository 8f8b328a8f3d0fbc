"""What is the same for every request of one key for one model: limits, sizes, and the constant part of a job. Worked
out once, and kept until the key or the model changes.

Pure. Invariant: a standing is used only with the very principal and model objects that it was made from, so a change
that replaces either replaces it.
"""

import hashlib
import hmac
import uuid
from dataclasses import dataclass
from typing import Final

from gateway.admission import sizes
from gateway.admission.catalog import ServedModel
from gateway.admission.limiter import Limit
from gateway.admission.sizes import Sizes
from gateway.seams import Principal

CACHE_SALT_LABEL: Final = b"forebay cache salt v1"
STANDINGS_MAX: Final = 10_000


@dataclass(slots=True, frozen=True)
class Standing:
    principal: Principal
    model: ServedModel
    model_id: uuid.UUID
    limits: tuple[Limit, ...]  # those that concern the model
    sizes: Sizes
    tenant: str
    key: str
    cache_salt: bytes


class Standings:
    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Standing] = {}

    def of(self, principal: Principal, model: ServedModel) -> Standing:
        name = principal.public_id, model.digest
        standing = self._kept.get(name)
        if standing is None or standing.principal is not principal or standing.model is not model:
            if len(self._kept) >= STANDINGS_MAX:
                self._kept.clear()
            standing = self._kept[name] = _standing(principal, model)
        return standing


def _standing(principal: Principal, model: ServedModel) -> Standing:
    model_id = uuid.UUID(model.id)
    return Standing(
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
    """Tenants never share cached blocks, so that none can time what another has sent. The same on every gateway, and no
    secret: see docs/adr/0007.
    """
    return hmac.digest(CACHE_SALT_LABEL, tenant_id.bytes, hashlib.sha256)[:16]
