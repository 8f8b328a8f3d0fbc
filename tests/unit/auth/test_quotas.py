import uuid

import msgspec

from gateway.admission.limiter import BucketLimit
from gateway.auth import quotas
from gateway.db.queries import Quota, StoredKey

KEY = StoredKey(
    key_id=uuid.uuid4(),
    public_id="abcdefghijkl",
    env="live",
    digest=bytes(32),
    scopes=frozenset({"inference"}),
    expires_at=None,
    revoked_at=None,
    tenant_id=uuid.uuid4(),
    tenant="acme",
    tenant_status="active",
    plan_id=uuid.uuid4(),
    plan="standard",
    tier=1,
    plan_quotas=(),
    tenant_quotas=(),
    key_quotas=(),
)


def quota(metric: str, allowed: int | None, burst: int | None = None) -> Quota:
    return Quota(metric=metric, allowed=allowed, burst=burst)


def with_quotas(**scopes: tuple[Quota, ...]) -> StoredKey:
    return msgspec.structs.replace(KEY, **{f"{scope}_quotas": rows for scope, rows in scopes.items()})


def test_no_quota_is_no_limit() -> None:
    assert quotas.limits(KEY) == ()
    assert quotas.context_max(KEY) is None


def test_a_tenants_own_quota_replaces_its_plans_and_null_lifts_it() -> None:
    stored = with_quotas(plan=(quota("rpm", 10), quota("tpm", 1_000)), tenant=(quota("rpm", None), quota("tpm", 5, 7)))
    tokens = BucketLimit(metric="tokens", scope=f"tenant:{KEY.tenant_id}", per_minute=5, burst=7)
    assert quotas.limits(stored) == (tokens,)


def test_a_keys_quota_holds_besides_its_tenants() -> None:
    stored = with_quotas(plan=(quota("tpm", 1_000),), key=(quota("tpm", 50), quota("rpm", 0)))
    assert {(limit.scope, limit.metric, limit.per_minute) for limit in quotas.limits(stored)} == {
        (f"tenant:{KEY.tenant_id}", "tokens", 1_000),
        (f"key:{KEY.key_id}", "tokens", 50),
        (f"key:{KEY.key_id}", "requests", 0),
    }


def test_the_smallest_context_holds_and_zero_is_a_limit() -> None:
    stored = with_quotas(plan=(quota("max_context", 100),), key=(quota("max_context", 200),))
    assert quotas.context_max(stored) == 100
    assert quotas.context_max(with_quotas(tenant=(quota("max_context", 0),))) == 0
    assert (
        quotas.context_max(with_quotas(plan=(quota("max_context", 9),), tenant=(quota("max_context", None),))) is None
    )
