"""The administrators' API over real HTTP and a real catalogue: who may, and what is answered."""

import re
import uuid
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from gateway import keys
from gateway.api.admin.route import OPT, PREFIX
from gateway.api.admin.routes import ROUTES
from gateway.db import queries
from gateway.db.tables import QUOTA_METRICS
from tests.answers import Answer
from tests.integration.administration import ADMIN, READ_KEY, ROOT, administered, call, make_key, make_tenant
from tests.scripted_gateway import ADMIN_KEY, KEY, ScriptedGateway, scripted_gateway
from tests.tiny_model import MODEL


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[ScriptedGateway]:
    async with administered(database_url) as running:
        yield running


class TestWhoMay:
    async def test_only_keys_with_the_scope(self, gateway: ScriptedGateway) -> None:
        for key, method, status, code in (
            (None, "GET", 401, "invalid_api_key"),
            ("fb-test-nobody", "POST", 401, "invalid_api_key"),
            (KEY, "GET", 403, "insufficient_permissions"),
            (KEY, "POST", 403, "insufficient_permissions"),
            (READ_KEY, "POST", 403, "insufficient_permissions"),
            (READ_KEY, "GET", 200, None),
            (ADMIN_KEY, "GET", 200, None),
        ):
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            data = b"{not json" if method == "POST" else None  # the key comes before the body
            async with gateway.http.request(
                method, gateway.base + ROOT + "/tenants", headers=headers, data=data
            ) as response:
                answer = Answer(response.status, response.headers.copy(), await response.read())
            assert answer.status == status, (key, method)
            assert answer.headers["x-request-id"]
            assert code is None or answer.error["code"] == code

    async def test_none_of_them_may_call_models(self, gateway: ScriptedGateway) -> None:
        for key in (ADMIN_KEY, READ_KEY):
            for path in ("/v1/chat/completions", "/v1/completions"):
                answer = await gateway.post(path, {}, headers={"authorization": f"Bearer {key}"})
                assert (answer.status, answer.error["code"]) == (403, "insufficient_permissions")

    async def test_a_draining_gateway_and_one_without_postgres_say_so(self, gateway: ScriptedGateway) -> None:
        gateway.services.gate.closed = True
        assert (await call(gateway, "GET", "/tenants")).status == 503
        async with scripted_gateway() as alone:
            refused = await call(alone, "GET", "/tenants")
            assert (refused.status, refused.error["code"]) == (503, "server_is_overloaded")
            assert refused.headers["retry-after"]


async def test_a_gateway_that_is_full_of_requests_can_still_be_told_what_to_refuse(database_url: str) -> None:
    async with administered(database_url, requests_open_max=1) as gateway:
        await make_tenant(gateway)
        gateway.services.gate.enter()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        assert (await gateway.post("/v1/chat/completions", body)).status == 503
        suspended = await call(gateway, "PATCH", "/tenants/acme", {"status": "suspended"})
        assert suspended.status == 200
        gateway.services.gate.leave()


class TestTenants:
    async def test_a_tenant_from_making_to_suspending(self, gateway: ScriptedGateway) -> None:
        made = await make_tenant(gateway, limits={"rpm": 60, "tpm": None})
        assert (made["status"], made["plan"], made["tier"], made["limits"]) == (
            "active",
            "standard",
            1,
            {"rpm": 60, "tpm": None},
        )
        changed = await call(
            gateway,
            "PATCH",
            "/tenants/acme",
            {"plan": "economy", "status": "suspended", "limits": {"rpm": 0}, "ignore_unknown_fields": True},
        )
        assert changed.status == 200
        assert changed.json == {
            **made,
            "plan": "economy",
            "tier": 2,
            "status": "suspended",
            "ignore_unknown_fields": True,
            "limits": {"rpm": 0, "tpm": None},
        }
        assert (await call(gateway, "GET", "/tenants/acme")).json == changed.json

    async def test_what_cannot_be_is_refused_by_name(self, gateway: ScriptedGateway, sql: asyncpg.Connection) -> None:
        await make_tenant(gateway)
        for body, status, param in (
            ({"name": "acme"}, 400, "plan"),
            ({"name": "Not A Name", "plan": "standard"}, 400, "name"),
            ({"name": "x" * 64, "plan": "standard"}, 400, "name"),
            ({"name": "other", "plan": "standard", "tier": 1}, 400, "tier"),
            ({"name": "other", "plan": "nothing"}, 404, None),
            ({"name": "acme", "plan": "standard"}, 409, None),
            ({"name": "other", "plan": "standard", "limits": {"rps": 1}}, 400, "limits"),
            ([], 400, None),
        ):
            refused = await call(gateway, "POST", "/tenants", body)
            assert (refused.status, refused.error["param"]) == (status, param), refused.body
        assert await sql.fetchval("SELECT count(*) FROM tenants") == 1
        assert await sql.fetchval("SELECT count(*) FROM audit_log") == 1

    async def test_what_is_not_there(self, gateway: ScriptedGateway) -> None:
        for method, path in (
            ("GET", "/tenants/nobody"),
            ("GET", "/tenants/%00"),
            ("GET", "/tenants/%ff%fe"),
            ("GET", "/tenants/a%2Fb"),
            ("PATCH", "/tenants/nobody"),
            ("GET", "/keys?tenant=nobody"),
            ("GET", "/quotas?tenant=nobody"),
            ("GET", "/usage?tenant=nobody"),
            ("GET", "/keys/000000000000"),
            ("POST", "/keys/000000000000/revoke"),
            ("DELETE", "/plans/nothing"),
            ("DELETE", "/quotas/nothing"),
            ("DELETE", f"/grants/{uuid.UUID(int=0)}"),
        ):
            missing = await call(gateway, method, path, {} if method == "PATCH" else None)
            assert missing.status in (400, 404), path
            assert missing.error["type"] == "invalid_request_error"


async def test_a_query_that_is_wrong_is_named(gateway: ScriptedGateway) -> None:
    for query in ("limit=0", "limit=101", "limit=x", "after=x", "limit=1&limit=2", "page=2", "after="):
        refused = await call(gateway, "GET", f"/tenants?{query}")
        assert (refused.status, refused.error["param"]) == (400, query.partition("=")[0])


async def test_no_text_in_a_path_or_query_is_a_fault_of_ours(gateway: ScriptedGateway) -> None:
    for operation in (route.opt[OPT] for route in ROUTES):
        path = operation.path.removeprefix(PREFIX)
        names = [field.name for field in msgspec.structs.fields(operation.query)]
        for text in ("%00", "%0A", "x" * 8_000):
            asked = [f"{path}?{name}={text}" for name in names if operation.method == "GET"]
            for each in (re.sub(r"\{\w+\}", text, path), *asked):
                answer = await call(gateway, operation.method, each, {})
                assert answer.status in (200, 400, 404), each
                assert len(answer.body) < 4_096


async def test_pages_hold_every_row_once_though_rows_are_made_meanwhile(gateway: ScriptedGateway) -> None:
    names = [f"tenant-{number}" for number in range(5)]
    late = ["late-0", "late-1"]
    for name in names:
        await make_tenant(gateway, name)
    seen: list[str] = []
    after = ""
    for _ in range(10):
        answer = (await call(gateway, "GET", f"/tenants?limit=2{after}")).json
        seen += [row["name"] for row in answer["data"]]
        assert answer["first_id"] == answer["data"][0]["id"]
        assert len(answer["data"]) <= 2
        if not answer["has_more"]:
            break
        after = f"&after={answer['last_id']}"
        if late:
            await make_tenant(gateway, late.pop(0))
    assert seen == [*names, "late-0", "late-1"]
    empty = (await call(gateway, "GET", f"/tenants?after={answer['last_id']}")).json
    assert empty == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


class TestLimits:
    async def test_a_limit_that_is_none_is_refused_and_the_old_one_stays(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        public_id = (await make_key(gateway, limits={"rpm": 5}))["key"]["public_id"]
        url = f"{gateway.base}{ROOT}/keys/{public_id}"
        for value in ("-1", "1.5", '"10"', "1e400", "9223372036854775808", "10000000001", "true", "[]", "NaN"):
            data = f'{{"limits": {{"rpm": {value}}}}}'.encode()
            async with gateway.http.patch(url, data=data, headers=ADMIN) as response:
                assert response.status == 400, value
        assert (await call(gateway, "GET", f"/keys/{public_id}")).json["limits"] == {"rpm": 5}

    async def test_zero_null_and_absent_are_three_statements(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        made = await make_key(gateway, limits={"rpm": 0, "tpm": None})
        path = f"/keys/{made['key']['public_id']}"
        assert made["key"]["limits"] == {"rpm": 0, "tpm": None}
        assert (await call(gateway, "PATCH", path, {"limits": {}})).json["limits"] == {"rpm": 0, "tpm": None}
        assert (await call(gateway, "PATCH", path, {"limits": {"rpm": None}})).json["limits"] == {
            "rpm": None,
            "tpm": None,
        }

    async def test_quotas_one_by_one(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        quota = {"tenant": "acme", "metric": "tpm", "allowed": 9, "burst": 3}
        first = (await call(gateway, "PUT", "/quotas", quota)).json
        again = (await call(gateway, "PUT", "/quotas", {**quota, "allowed": None, "burst": None})).json
        assert first | {"allowed": None, "burst": None} == again
        await call(gateway, "PUT", "/quotas", {"plan": "economy", "metric": "tpm", "allowed": 1})
        listed = (await call(gateway, "GET", "/quotas?tenant=acme")).json["data"]
        assert listed == [again]
        assert (await call(gateway, "DELETE", f"/quotas/{again['id']}")).json == {"id": again["id"], "deleted": True}
        assert (await call(gateway, "GET", "/tenants/acme")).json["limits"] == {}
        for wrong in ({"tenant": "acme", "plan": "economy"}, {}, {"tenant": "acme", "metric": "rps"}):
            refused = await call(gateway, "PUT", "/quotas", {"metric": "tpm", "allowed": 1, **wrong})
            assert refused.status == 400

    async def test_a_models_quota_stands_beside_that_of_all_models(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway, limits={"concurrency": 9})
        await queries.register_model(gateway.services.database, "org/m", context_length=9, vocab_size=5, card="c")
        quota = {"tenant": "acme", "model": "org/m", "metric": "concurrency", "allowed": 2, "mode": "shadow"}
        made = await call(gateway, "PUT", "/quotas", quota)
        assert (made.status, made.json) == (200, made.json | quota | {"plan": None, "key": None, "burst": None})
        assert (await call(gateway, "GET", "/tenants/acme")).json["limits"] == {"concurrency": 9}
        again = (await call(gateway, "PUT", "/quotas", {**quota, "allowed": 3, "mode": "enforce"})).json
        assert again == {**made.json, "allowed": 3, "mode": "enforce"}
        assert (await call(gateway, "GET", "/quotas?model=org/m")).json["data"] == [again]
        assert len((await call(gateway, "GET", "/quotas?tenant=acme")).json["data"]) == 2
        assert (await call(gateway, "PUT", "/quotas", {**quota, "model": "nothing"})).status == 404
        assert (await call(gateway, "PUT", "/quotas", {**quota, "mode": "perhaps"})).status == 400
        await call(gateway, "DELETE", f"/quotas/{made.json['id']}")
        [left] = (await call(gateway, "GET", "/quotas?tenant=acme")).json["data"]
        assert (left["model"], left["allowed"], left["mode"]) == (None, 9, "enforce")

    async def test_every_metric_has_its_quota(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        for metric in QUOTA_METRICS:
            assert (
                await call(gateway, "PUT", "/quotas", {"tenant": "acme", "metric": metric, "allowed": 1})
            ).status == 200
        assert (await call(gateway, "GET", "/tenants/acme")).json["limits"] == dict.fromkeys(QUOTA_METRICS, 1)


async def test_a_plan_gives_a_tier_that_exists_and_goes_when_it_has_no_tenants(gateway: ScriptedGateway) -> None:
    made = await call(gateway, "POST", "/plans", {"name": "gold", "tier": 0, "limits": {"tpm": 100}})
    assert (made.status, made.json["limits"]) == (201, {"tpm": 100})
    assert (await call(gateway, "PATCH", "/plans/gold", {"tier": 2})).json == {**made.json, "tier": 2}
    assert (await call(gateway, "POST", "/plans", {"name": "silver", "tier": 7})).status == 404
    assert [tier["id"] for tier in (await call(gateway, "GET", "/tiers")).json["data"]] == [0, 1, 2]
    await make_tenant(gateway, plan="gold")
    assert (await call(gateway, "DELETE", "/plans/gold")).error["message"] == "The plan gold has tenants."
    await call(gateway, "PATCH", "/tenants/acme", {"plan": "economy"})
    assert (await call(gateway, "DELETE", "/plans/gold")).status == 200
    assert (await call(gateway, "GET", "/plans/gold")).status == 404


class TestKeys:
    async def test_a_key_is_shown_once_and_stored_as_a_digest(
        self, gateway: ScriptedGateway, sql: asyncpg.Connection
    ) -> None:
        await make_tenant(gateway)
        made = await make_key(
            gateway, name="ci", networks=["192.0.2.1", "2001:db8::/32"], expires_at="2999-01-01T00:00:00Z"
        )
        text, key = made["text"], made["key"]
        record = keys.record(text)
        assert record is not None
        assert (key["public_id"], key["last4"]) == (record.public_id, text[-4:])
        assert key["networks"] == ["192.0.2.1/32", "2001:db8::/32"]
        assert await sql.fetchval("SELECT secret_digest FROM api_keys") == record.digest
        listed = await call(gateway, "GET", "/keys?tenant=acme")
        assert listed.json["data"] == [key]
        assert text.split("-")[3].encode() not in listed.body

    async def test_what_a_key_cannot_be(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        for wrong in (
            {"networks": ["192.0.2.1/24"]},
            {"networks": ["everywhere"]},
            {"networks": ["192.0.2.0/24"] * 1_001},
            {"scope": "root"},
            {"expires_at": "2999-01-01"},
            {"expires_at": "2999-01-01T00:00:00"},
            {"env": "LIVE"},
            {"env": "live\n"},
            {"secret": "mine"},
            {"name": keys.generate("live")[0]},
        ):
            refused = await call(gateway, "POST", "/keys", {"tenant": "acme", **wrong})
            assert refused.status == 400, wrong
        assert (await call(gateway, "GET", "/keys")).json["data"] == []

    async def test_a_rotation_keeps_everything_but_the_secret(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        made = await make_key(gateway, limits={"rpm": 5}, name="ci")
        path = f"/keys/{made['key']['public_id']}"
        rotated = (await call(gateway, "POST", f"{path}/rotate", {"overlap_s": 3_600})).json
        assert rotated["text"] != made["text"]
        kept = {name: value for name, value in rotated["key"].items() if name not in ("last4", "former_until")}
        assert kept == {name: made["key"][name] for name in kept}
        stored = await queries.find_key(gateway.services.database, made["key"]["public_id"])
        before, after = keys.record(made["text"]), keys.record(rotated["text"])
        assert stored is not None
        assert before is not None
        assert after is not None
        assert (stored.digest, stored.former_digest) == (after.digest, before.digest)
        refused = await call(gateway, "POST", f"{path}/rotate", {"overlap_s": 60})
        assert (refused.status, refused.error["code"]) == (400, "invalid_value")
        at_once = (await call(gateway, "POST", f"{path}/rotate", {"overlap_s": 0})).json
        assert at_once["key"]["former_until"] is None
        stored = await queries.find_key(gateway.services.database, made["key"]["public_id"])
        assert stored is not None
        assert stored.former_digest is None

    async def test_a_revoked_key_is_not_rotated(self, gateway: ScriptedGateway) -> None:
        await make_tenant(gateway)
        path = f"/keys/{(await make_key(gateway))['key']['public_id']}"
        first = (await call(gateway, "POST", f"{path}/revoke")).json
        assert first["revoked_at"]
        assert (await call(gateway, "POST", f"{path}/revoke")).json == first
        assert (await call(gateway, "POST", f"{path}/rotate", {"overlap_s": 0})).status == 400


async def test_a_closed_model_is_granted_once_to_one_plan_or_tenant(gateway: ScriptedGateway) -> None:
    await make_tenant(gateway)
    for name in ("org/m", "n"):
        await queries.register_model(gateway.services.database, name, context_length=9, vocab_size=5, card="c")
    assert [model["name"] for model in (await call(gateway, "GET", "/models")).json["data"]] == ["org/m", "n"]
    closed = await call(gateway, "PUT", "/models/access", {"model": "org/m", "access": "granted"})
    assert closed.json["access"] == "granted"
    grant = await call(gateway, "POST", "/grants", {"model": "org/m", "tenant": "acme"})
    assert (grant.status, grant.json["tenant"], grant.json["plan"]) == (201, "acme", None)
    assert (await call(gateway, "POST", "/grants", {"model": "org/m", "tenant": "acme"})).status == 409
    assert (await call(gateway, "POST", "/grants", {"model": "org/m"})).status == 400
    assert (await call(gateway, "GET", "/grants?model=org/m")).json["data"] == [grant.json]
    assert (await call(gateway, "DELETE", f"/grants/{grant.json['id']}")).status == 200
    key = await make_key(gateway, models=["n", "org/m", "n"])
    assert key["key"]["models"] == ["n", "org/m"]
    assert (await call(gateway, "POST", "/keys", {"tenant": "acme", "models": ["nothing"]})).status == 404
