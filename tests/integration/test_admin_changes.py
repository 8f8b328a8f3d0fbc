"""Changes by administrators: each is made once, whoever repeats it, and each is written down."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway import keys
from tests.integration.administration import administered, call, make_tenant
from tests.scripted_gateway import Caller, ScriptedGateway

NAMED = {"idempotency-key": "make acme"}


@pytest.fixture
async def gateway(database_url: str) -> AsyncIterator[ScriptedGateway]:
    async with administered(database_url) as running:
        yield running


class TestIdempotency:
    async def test_a_repeat_is_answered_and_not_done_again(
        self, gateway: ScriptedGateway, sql: asyncpg.Connection
    ) -> None:
        body = {"name": "acme", "plan": "standard"}
        first = await call(gateway, "POST", "/tenants", body, NAMED)
        again = await call(gateway, "POST", "/tenants", body, NAMED)
        assert (first.status, again.status) == (201, 201)
        assert first.body == again.body
        assert "idempotent-replayed" not in first.headers
        assert again.headers["idempotent-replayed"] == "true"
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert await sql.fetchval("SELECT count(*) FROM audit_log") == 1

    async def test_a_repeat_with_another_key_of_the_same_tenant_is_a_repeat(self, gateway: ScriptedGateway) -> None:
        sibling = {"authorization": "Bearer fb-test-sibling", **NAMED}
        gateway.principals.callers["fb-test-sibling"] = Caller(key_id=uuid.UUID(int=78), scopes=frozenset({"admin"}))
        body = {"name": "acme", "plan": "standard"}
        first = await call(gateway, "POST", "/tenants", body, NAMED)
        again = await call(gateway, "POST", "/tenants", body, sibling)
        assert (again.status, again.body, again.headers["idempotent-replayed"]) == (201, first.body, "true")

    async def test_a_repeat_never_shows_the_key_again(self, gateway: ScriptedGateway, sql: asyncpg.Connection) -> None:
        await make_tenant(gateway)
        first = (await call(gateway, "POST", "/keys", {"tenant": "acme"}, NAMED)).json
        again = (await call(gateway, "POST", "/keys", {"tenant": "acme"}, NAMED)).json
        assert first["text"] is not None
        assert again == {"text": None, "key": first["key"]}
        secret = first["text"].split("-")[3]
        assert secret.encode() not in await sql.fetchval("SELECT body FROM idempotent_answers")

    async def test_another_request_under_the_same_name_is_refused(self, gateway: ScriptedGateway) -> None:
        body = {"name": "acme", "plan": "standard"}
        await call(gateway, "POST", "/tenants", body, NAMED)
        for path, other in (("/tenants", {"name": "other", "plan": "standard"}), ("/plans", {"name": "p", "tier": 1})):
            refused = await call(gateway, "POST", path, other, NAMED)
            assert (refused.status, refused.error["code"]) == (400, "idempotency_mismatch")

    async def test_a_call_that_failed_may_be_repeated(self, gateway: ScriptedGateway) -> None:
        body = {"tenant": "acme"}
        assert (await call(gateway, "POST", "/keys", body, NAMED)).status == 404
        await make_tenant(gateway)
        assert (await call(gateway, "POST", "/keys", body, NAMED)).status == 201

    async def test_while_one_is_being_served_the_other_is_told_to_wait(
        self, gateway: ScriptedGateway, sql: asyncpg.Connection
    ) -> None:
        body = {"name": "acme", "plan": "standard"}
        async with sql.transaction():
            await sql.execute("LOCK TABLE tenants IN EXCLUSIVE MODE")  # the first one waits inside its transaction
            first = asyncio.create_task(call(gateway, "POST", "/tenants", body, NAMED))
            while not await sql.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"):
                await asyncio.sleep(0.01)
            second = await call(gateway, "POST", "/tenants", body, NAMED)
            assert (second.status, second.error["code"]) == (409, "idempotency_in_progress")
            assert second.headers["x-should-retry"] == "true"
            assert not first.done()
        assert (await first).status == 201

    async def test_names_are_a_tenants_own_and_forgotten_after_a_day(
        self, gateway: ScriptedGateway, sql: asyncpg.Connection
    ) -> None:
        elsewhere = {"authorization": "Bearer fb-test-elsewhere", **NAMED}
        gateway.principals.callers["fb-test-elsewhere"] = Caller(
            tenant_id=uuid.UUID(int=77), scopes=frozenset({"admin"})
        )
        body = {"name": "acme", "plan": "standard"}
        await call(gateway, "POST", "/tenants", body, NAMED)
        assert (await call(gateway, "POST", "/tenants", body, elsewhere)).status == 409
        await sql.execute("UPDATE idempotent_answers SET created_at = now() - interval '23 hours 59 minutes'")
        assert (await call(gateway, "POST", "/tenants", body, NAMED)).status == 201
        await sql.execute("UPDATE idempotent_answers SET created_at = now() - interval '24 hours 1 minute'")
        assert (await call(gateway, "POST", "/tenants", body, NAMED)).status == 409
        other = {"name": "other", "plan": "standard"}
        assert (await call(gateway, "POST", "/tenants", other, {"idempotency-key": "another"})).status == 201
        assert [row["key"] for row in await sql.fetch("SELECT key FROM idempotent_answers")] == ["another"]

    async def test_a_name_that_is_none(self, gateway: ScriptedGateway) -> None:
        body = {"name": "acme", "plan": "standard"}
        for name in ("", "x" * 256, "na\xefve\x80", keys.generate("live")[0]):
            refused = await call(gateway, "POST", "/tenants", body, {"idempotency-key": name})
            assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")
        assert (await call(gateway, "POST", "/tenants", body, {"idempotency-key": "x" * 255})).status == 201


class TestAudit:
    async def test_each_change_has_its_row(self, gateway: ScriptedGateway) -> None:
        made = await call(gateway, "POST", "/tenants", {"name": "acme", "plan": "standard"})
        changed = await call(gateway, "PATCH", "/tenants/acme", {"status": "suspended"})
        rows = (await call(gateway, "GET", "/audit")).json["data"]
        assert [(row["action"], row["object_type"], row["object_id"]) for row in rows] == [
            ("update", "tenant", made.json["id"]),
            ("create", "tenant", made.json["id"]),
        ]
        assert (rows[0]["before"], rows[0]["after"]) == (made.json, changed.json)
        assert (rows[1]["before"], rows[1]["after"]) == (None, made.json)
        assert {row["actor"] for row in rows} == {"key:scripted"}
        assert {row["actor_ip"] for row in rows} == {"127.0.0.1"}
        assert [row["request_id"] for row in rows] == [
            changed.headers["x-request-id"],
            made.headers["x-request-id"],
        ]

    async def test_it_is_read_in_pages_and_by_object_and_actor(self, gateway: ScriptedGateway) -> None:
        ids = [(await make_tenant(gateway, f"tenant-{number}"))["id"] for number in range(3)]
        first = (await call(gateway, "GET", "/audit?limit=2")).json
        second = (await call(gateway, "GET", f"/audit?limit=2&after={first['last_id']}")).json
        assert [row["object_id"] for row in first["data"] + second["data"]] == ids[::-1]
        assert (first["has_more"], second["has_more"]) == (True, False)
        found = (await call(gateway, "GET", f"/audit?object_type=tenant&object_id={ids[1]}")).json["data"]
        assert [row["object_id"] for row in found] == [ids[1]]
        assert (await call(gateway, "GET", "/audit?actor=cli:root")).json["data"] == []

    async def test_nobody_rewrites_it(self, gateway: ScriptedGateway, sql: asyncpg.Connection) -> None:
        await make_tenant(gateway)
        for role in ("forebay_app", "postgres"):
            await sql.execute(f"SET ROLE {role}" if role == "forebay_app" else "RESET ROLE")
            await sql.fetch("SELECT * FROM audit_log")
            for statement in (
                "UPDATE audit_log SET actor = 'me'",
                "DELETE FROM audit_log",
                "TRUNCATE audit_log",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await sql.execute(statement)
