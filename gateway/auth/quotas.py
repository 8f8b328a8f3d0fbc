"""From rows of `quotas` to the limits of one key: pure.

A tenant's own quota replaces its plan's of the same metric and model; a key's quota holds besides the tenant's, and a
model's besides that of all models. No quota and null are unlimited, 0 is none at all.
"""

import uuid
from collections.abc import Iterable, Iterator
from typing import Final

from gateway.admission.limiter import Limit, Metric
from gateway.db.queries import Quota, StoredKey

# A quota is named as operators write it, a limit as clients read it: in `x-ratelimit-*`, messages and metrics' labels.
_METRICS: Final[dict[str, Metric]] = {
    "rpm": "requests",
    "tpm": "tokens",
    "max_context": "max_context",
    "max_output": "max_output",
    "concurrency": "concurrency",
    "queued_requests": "queued_requests",
    "queued_tokens": "queued_tokens",
    "day_tokens": "day_tokens",
    "month_cost": "month_cost",
}


def limits(stored: StoredKey) -> tuple[Limit, ...]:
    """What limits the tenant (shared by all of its keys) and the key, over all models and of single ones."""
    of_tenant = _by_metric(stored.plan_quotas) | _by_metric(stored.tenant_quotas)
    return (
        *_limits(stored.tenant_id, None, of_tenant.values()),
        *_limits(stored.tenant_id, stored.key_id, stored.key_quotas),
    )


def _by_metric(rows: tuple[Quota, ...]) -> dict[tuple[str, uuid.UUID | None], Quota]:
    return {(quota.metric, quota.model_id): quota for quota in rows}


def _limits(tenant_id: uuid.UUID, key_id: uuid.UUID | None, rows: Iterable[Quota]) -> Iterator[Limit]:
    for quota in rows:
        if quota.allowed is not None:
            yield Limit(
                metric=_METRICS[quota.metric],
                tenant_id=tenant_id,
                key_id=key_id,
                model_id=quota.model_id,
                allowed=quota.allowed,
                burst=quota.burst,
                enforced=quota.mode == "enforce",
            )
