"""Demands and limits for tests of the limiter: one tenant, one key and one model unless a test says otherwise."""

import uuid

import msgspec

from gateway.admission.limiter import Demand, Limit, Metric

TENANT, KEY, MODEL = uuid.UUID(int=1), uuid.UUID(int=2), uuid.UUID(int=3)


def limit(
    metric: Metric,
    allowed: int | None,
    *,
    burst: int | None = None,
    key: uuid.UUID | None = None,
    model: uuid.UUID | None = None,
    tenant: uuid.UUID = TENANT,
    enforced: bool = True,
) -> Limit:
    return Limit(
        metric=metric, tenant_id=tenant, key_id=key, model_id=model, allowed=allowed, burst=burst, enforced=enforced
    )


def demand(
    *limits: Limit,
    tokens: int = 10,
    cost_micro: int = 0,
    tenant: uuid.UUID = TENANT,
    key: uuid.UUID = KEY,
    model: uuid.UUID = MODEL,
) -> Demand:
    return Demand(
        request_id=uuid.uuid4(),
        tenant_id=tenant,
        api_key_id=key,
        model_id=model,
        tokens=tokens,
        cost_micro=cost_micro,
        limits=limits,
    )


def again(one: Demand, **changes: object) -> Demand:
    """The same demand, of another request."""
    return msgspec.structs.replace(one, request_id=uuid.uuid4(), **changes)
