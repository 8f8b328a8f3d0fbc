"""From rows of `quotas` to the limits of one key: pure.

A tenant's own quota replaces its plan's of the same metric; a key's quota holds besides the tenant's. No quota and
null are unlimited, 0 is none at all.
"""

from typing import Final

from gateway.admission.limiter import BucketLimit, Metric
from gateway.db.queries import Quota, StoredKey

_BUCKETS: Final[dict[str, Metric]] = {"rpm": "requests", "tpm": "tokens"}


def limits(stored: StoredKey) -> tuple[BucketLimit, ...]:
    """A bucket for each limited metric of the tenant (shared by all of its keys) and of the key."""
    return (
        *_buckets(f"tenant:{stored.tenant_id}", _of_tenant(stored)),
        *_buckets(f"key:{stored.key_id}", _by_metric(stored.key_quotas)),
    )


def context_max(stored: StoredKey) -> int | None:
    """The smallest context that the tenant or the key is held to, in tokens."""
    found = (_of_tenant(stored).get("max_context"), _by_metric(stored.key_quotas).get("max_context"))
    return min((quota.allowed for quota in found if quota is not None and quota.allowed is not None), default=None)


def _by_metric(rows: tuple[Quota, ...]) -> dict[str, Quota]:
    return {quota.metric: quota for quota in rows}


def _of_tenant(stored: StoredKey) -> dict[str, Quota]:
    return _by_metric(stored.plan_quotas) | _by_metric(stored.tenant_quotas)


def _buckets(scope: str, rows: dict[str, Quota]) -> tuple[BucketLimit, ...]:
    return tuple(
        BucketLimit(metric=metric, scope=scope, per_minute=rows[name].allowed, burst=rows[name].burst)
        for name, metric in _BUCKETS.items()
        if name in rows and rows[name].allowed is not None
    )
