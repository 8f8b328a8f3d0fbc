"""What is worked out once for a key and a model, and once for their limits: never another's, never an old one."""

import uuid
from types import SimpleNamespace
from typing import Any

import msgspec

from gateway.admission import entitlement, pg_limiter
from gateway.admission.entitlement import Entitlements
from gateway.admission.pg_limiter import PgLimiter
from tests.demands import KEY, MODEL, TENANT, demand, limit

OTHER = uuid.UUID(int=9)


class Caller(msgspec.Struct, frozen=True):
    """As much of a principal as an entitlement is made of."""

    limits: tuple[Any, ...]
    public_id: str = "k"
    tenant_id: uuid.UUID = TENANT
    key_id: uuid.UUID = KEY


def served(model: uuid.UUID = MODEL, digest: str = "d") -> Any:
    return SimpleNamespace(id=str(model), digest=digest, encoder=SimpleNamespace(context_max=100))


def caller(*limits: Any, **changes: Any) -> Any:
    return Caller(limits, **changes)


def test_it_is_made_once_for_the_same_key_and_model() -> None:
    entitlements, one, model = Entitlements(), caller(limit("requests", 5)), served()
    assert entitlements.of(one, model) is entitlements.of(one, model)


def test_a_key_that_was_read_again_brings_its_new_limits() -> None:
    entitlements, model = Entitlements(), served()
    before, after = limit("requests", 5), limit("requests", 7)
    assert entitlements.of(caller(before), model).limits == (before,)
    assert entitlements.of(caller(after), model).limits == (after,)


def test_a_model_that_was_registered_again_is_the_new_one() -> None:
    entitlements, one, again = Entitlements(), caller(), served()
    assert entitlements.of(one, served()).model is not again
    assert entitlements.of(one, again).model is again


def test_limits_of_other_models_have_no_part_in_it() -> None:
    mine, others = limit("requests", 5, model=MODEL), limit("requests", 1, model=OTHER)
    assert Entitlements().of(caller(mine, others), served()).limits == (mine,)


def test_tenants_have_salts_of_their_own_and_keys_of_one_share_it() -> None:
    entitlements, model = Entitlements(), served()
    salts = [
        entitlements.of(caller(public_id=name, tenant_id=tenant), model).cache_salt
        for name, tenant in (("a", TENANT), ("b", TENANT), ("c", OTHER))
    ]
    assert salts[0] == salts[1] != salts[2]


def test_so_many_are_kept_and_no_more(monkeypatch) -> None:
    monkeypatch.setattr(entitlement, "ENTITLEMENTS_MAX", 2)
    entitlements, model = Entitlements(), served()
    first = caller(public_id="0")
    kept = entitlements.of(first, model)
    for number in range(1, 3):
        entitlements.of(caller(public_id=str(number)), model)
    assert entitlements.of(first, model) is not kept


def test_what_is_prepared_of_limits_is_not_taken_for_that_of_others_in_their_place(monkeypatch) -> None:
    monkeypatch.setattr(pg_limiter, "PREPARED_MAX", 50)
    limiter: Any = PgLimiter(SimpleNamespace(get_max_size=lambda: 2), gateway_id="g")  # pyright: ignore[reportArgumentType]
    for allowed in range(1, 500):  # each tuple would lie where the last one lay, were that not kept
        assert limiter._prepare(demand(limit("requests", allowed))).buckets[1] == f"{{{allowed}}}"
        assert len(limiter._prepared) <= 50
