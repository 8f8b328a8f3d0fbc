import uuid

import msgspec

from gateway.admission.limiter import Limit
from gateway.auth import quotas
from gateway.db.queries import Quota, StoredKey, TierBounds

MODEL = uuid.uuid4()
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
    tier_bounds=TierBounds(),
    plan_quotas=(),
    tenant_quotas=(),
    key_quotas=(),
)
METRICS = {
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


def quota(metric: str, allowed: int | None, burst: int | None = None, model: uuid.UUID | None = None) -> Quota:
    return Quota(metric=metric, allowed=allowed, burst=burst, model_id=model)


def with_quotas(**scopes: tuple[Quota, ...]) -> StoredKey:
    return msgspec.structs.replace(KEY, **{f"{scope}_quotas": rows for scope, rows in scopes.items()})


def test_no_quota_is_no_limit() -> None:
    assert quotas.limits(KEY) == ()


def test_a_tenants_own_quota_replaces_its_plans_and_null_lifts_it() -> None:
    stored = with_quotas(plan=(quota("rpm", 10), quota("tpm", 1_000)), tenant=(quota("rpm", None), quota("tpm", 5, 7)))
    assert quotas.limits(stored) == (Limit(metric="tokens", tenant_id=KEY.tenant_id, allowed=5, burst=7),)


def test_a_keys_quota_holds_besides_its_tenants_and_a_models_besides_that_of_all() -> None:
    stored = with_quotas(
        plan=(quota("tpm", 1_000), quota("tpm", 400, model=MODEL)),
        tenant=(quota("tpm", 300, model=MODEL),),
        key=(quota("tpm", 50), quota("rpm", 0), quota("tpm", 20, model=MODEL)),
    )
    assert {(limit.scope, limit.metric, limit.allowed) for limit in quotas.limits(stored)} == {
        (f"tenant:{KEY.tenant_id}", "tokens", 1_000),
        (f"tenant:{KEY.tenant_id}/model:{MODEL}", "tokens", 300),
        (f"key:{KEY.key_id}", "tokens", 50),
        (f"key:{KEY.key_id}", "requests", 0),
        (f"key:{KEY.key_id}/model:{MODEL}", "tokens", 20),
    }


def test_every_metric_of_the_schema_is_a_limit_and_zero_is_one() -> None:
    stored = with_quotas(tenant=tuple(quota(metric, 0) for metric in METRICS))
    assert {limit.metric: limit.allowed for limit in quotas.limits(stored)} == dict.fromkeys(METRICS.values(), 0)
    assert quotas.limits(with_quotas(tenant=tuple(quota(metric, None) for metric in METRICS))) == ()


def test_shadow_mode_is_kept() -> None:
    shadow = msgspec.structs.replace(quota("tpm", 5), mode="shadow")
    assert [limit.enforced for limit in quotas.limits(with_quotas(key=(shadow,), tenant=(quota("tpm", 6),)))] == [
        True,
        False,
    ]
