"""Keys and principals against a real catalogue: who gets in, how soon a change is obeyed, and Postgres away."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway.auth import keys
from gateway.auth.changes import ALL, Changes
from gateway.auth.principals import Principal, Principals
from gateway.db import catalogue, engine
from gateway.db.catalogue import Limits
from gateway.errors import Forbidden, InvalidKey, Unavailable

WITHIN_S = 10.0  # a slow machine's second


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[AsyncEngine]:
    database = engine.create(database_url)
    yield database
    await database.dispose()


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    """An administrator in psql."""
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close()


@pytest.fixture
async def principals(database: AsyncEngine) -> AsyncIterator[Principals]:
    async with Principals(database) as principals:
        yield principals


async def make_key(
    database: AsyncEngine, tenant: str = "acme", *, scopes: frozenset[str] = frozenset({"inference"})
) -> str:
    with contextlib.suppress(catalogue.AlreadyExists):
        await catalogue.create_tenant(database, tenant, plan="standard", limits=Limits(rpm=60, tpm=1_000))
    text, record = keys.generate("test")
    await catalogue.create_key(database, tenant, record, scopes=scopes)
    return text


def header(key: str) -> list[str]:
    return [f"Bearer {key}"]


async def until(condition: Callable[[], Awaitable[bool]]) -> float:
    """Seconds until the condition held."""
    began = time.monotonic()
    async with asyncio.timeout(WITHIN_S):
        while not await condition():
            await asyncio.sleep(0.02)
    return time.monotonic() - began


async def refused(principals: Principals, key: str) -> bool:
    try:
        await principals.resolve(header(key))
    except InvalidKey:
        return True
    return False


async def test_a_key_resolves_to_its_tenant_plan_and_limits(database: AsyncEngine, principals: Principals) -> None:
    key = await make_key(database)
    principal = await principals.resolve(header(key))
    assert (principal.tenant, principal.plan, principal.tier) == ("acme", "standard", 1)
    assert principal.scopes == {"inference"}
    assert principal.public_id in key
    assert {(limit.metric, limit.allowed, limit.burst) for limit in principal.limits} == {
        ("requests", 60, None),
        ("tokens", 1_000, None),
    }
    assert all(limit.scope == f"tenant:{principal.tenant_id}" for limit in principal.limits)


async def test_an_admin_key_has_the_admin_scope_alone(database: AsyncEngine, principals: Principals) -> None:
    key = await make_key(database, scopes=frozenset({"admin"}))
    assert (await principals.resolve(header(key))).scopes == {"admin"}


async def test_a_known_key_asks_the_database_nothing(database: AsyncEngine, principals: Principals) -> None:
    key = await make_key(database)
    await until(lambda: settled(database, principals, key))
    statements: list[str] = []
    event.listen(
        database.sync_engine,
        "before_cursor_execute",
        lambda *args: statements.append(args[2]) if "api_keys" in args[2] else None,
    )
    for _ in range(20):
        await principals.resolve(header(key))
    assert statements == []


async def settled(database: AsyncEngine, principals: Principals, key: str) -> bool:
    """Whether a first look at the changes is behind us and the key is fresh."""
    await principals.resolve(header(key))
    await asyncio.sleep(1.1)
    await principals.resolve(header(key))
    return True


async def test_one_answer_for_every_key_that_is_no_good(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection
) -> None:
    good = await make_key(database)
    public_id = good.split("-")[2]
    other_secret = keys.generate("test")[0].split("-")[3][: keys.SECRET_LENGTH]
    forged = f"fb-test-{public_id}-{other_secret}"
    forged += keys._checksum(forged)
    other_env = good.replace("fb-test-", "fb-live-")[: -keys.CHECKSUM_LENGTH]
    other_env += keys._checksum(other_env)
    expired = await make_key(database)
    await sql.execute("UPDATE api_keys SET expires_at = now() WHERE public_id = $1", expired.split("-")[2])
    revoked = await make_key(database)
    await catalogue.revoke_key(database, revoked.split("-")[2])
    answers = set[str]()
    for key in (keys.generate("test")[0], forged, other_env, expired, revoked, "nonsense"):
        with pytest.raises(InvalidKey) as refusal:
            await principals.resolve(header(key))
        answers.add(refusal.value.message)
    assert len(answers) == 1
    await principals.resolve(header(good))


async def test_a_suspended_tenant_is_told_so(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection
) -> None:
    key = await make_key(database)
    await sql.execute("UPDATE tenants SET status = 'suspended'")
    with pytest.raises(Forbidden) as refusal:
        await principals.resolve(header(key))
    assert refusal.value.code == "account_suspended"


async def test_revocation_by_plain_sql_is_obeyed(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection
) -> None:
    revoked, kept = await make_key(database, "acme"), await make_key(database, "other")
    for key in (revoked, kept):
        await principals.resolve(header(key))
    await sql.execute("UPDATE api_keys SET revoked_at = now() WHERE public_id = $1", revoked.split("-")[2])
    await until(lambda: refused(principals, revoked))
    await principals.resolve(header(kept))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE quotas SET allowed = 7 WHERE metric = 'tpm'",
        "DELETE FROM quotas WHERE metric = 'tpm'",
        "UPDATE tenants SET plan_id = (SELECT id FROM plans WHERE tier = 0)",
        "UPDATE plans SET tier = 2",
        "INSERT INTO quotas (plan_id, metric, allowed) SELECT id, 'max_context', 9 FROM plans",
        "INSERT INTO quotas (api_key_id, metric, allowed) SELECT id, 'tpm', 9 FROM api_keys",
        "TRUNCATE quotas",
    ],
)
async def test_every_change_that_concerns_a_key_is_obeyed(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection, statement: str
) -> None:
    key = await make_key(database)
    before = await principals.resolve(header(key))
    await sql.execute(statement)

    async def changed() -> bool:
        return await principals.resolve(header(key)) != before

    await until(changed)


async def test_a_key_made_after_it_was_refused_works(database: AsyncEngine, principals: Principals) -> None:
    await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits())
    text, record = keys.generate("test")
    assert await refused(principals, text)
    await catalogue.create_key(database, "acme", record, scopes=frozenset({"inference"}))

    async def accepted() -> bool:
        return not await refused(principals, text)

    await until(accepted)


async def test_a_key_of_a_deleted_row_is_refused(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection
) -> None:
    key = await make_key(database)
    await principals.resolve(header(key))
    await sql.execute("DELETE FROM api_keys")
    await until(lambda: refused(principals, key))


class TestChanges:
    async def test_a_commit_that_comes_late_is_seen(
        self, database: AsyncEngine, database_url: str, sql: asyncpg.Connection
    ) -> None:
        """A transaction opened first and committed last, around another tenant's change and two looks."""
        await make_key(database, "early")
        await make_key(database, "late")
        ids = {record["name"]: record["id"] for record in await sql.fetch("SELECT name, id FROM tenants")}
        changes = Changes(database)
        assert await changes.look(0) == ALL
        assert await changes.look(0) == frozenset()
        slow = await asyncpg.connect(database_url)
        try:
            async with slow.transaction():
                await slow.execute("UPDATE tenants SET status = 'suspended' WHERE name = 'late'")
                await sql.execute("UPDATE tenants SET status = 'suspended' WHERE name = 'early'")
                assert await changes.look(0) == {ids["early"]}
                assert await changes.look(0) == frozenset()
            assert await changes.look(0) == {ids["late"]}
            assert await changes.look(0) == frozenset()
        finally:
            await slow.close()

    async def test_a_change_rolled_back_is_none(self, database: AsyncEngine, sql: asyncpg.Connection) -> None:
        changes = Changes(database)
        await changes.look(0)
        with contextlib.suppress(ZeroDivisionError):
            async with sql.transaction():
                await sql.execute("UPDATE plans SET tier = 2")
                raise ZeroDivisionError
        assert await changes.look(0) == frozenset()

    async def test_a_plans_change_and_a_long_gap_concern_everybody(
        self, database: AsyncEngine, sql: asyncpg.Connection
    ) -> None:
        changes = Changes(database)
        await changes.look(0)
        await sql.execute("UPDATE plans SET tier = 2")
        assert await changes.look(1) == ALL
        assert await changes.look(2) == frozenset()
        assert await changes.look(100_000) == ALL

    async def test_too_many_changes_concern_everybody(self, database: AsyncEngine, sql: asyncpg.Connection) -> None:
        changes = Changes(database)
        await changes.look(0)
        await sql.execute(
            "INSERT INTO config_changes (tenant_id) SELECT gen_random_uuid() FROM generate_series(1, 10001)"
        )
        assert await changes.look(1) == ALL


async def test_a_database_that_cannot_be_reached_is_neither_refusal_nor_permission() -> None:
    nowhere = engine.create("postgresql://nobody@127.0.0.1:1/nothing")
    try:
        async with Principals(nowhere) as principals:
            with pytest.raises(Unavailable):
                await principals.resolve(header(keys.generate("test")[0]))
            with pytest.raises(InvalidKey):
                await principals.resolve(header("nonsense"))
    finally:
        await nowhere.dispose()


async def test_a_principal_of_another_tenant_never_leaks(database: AsyncEngine, principals: Principals) -> None:
    texts = [await make_key(database, f"tenant-{number}") for number in range(5)]

    async def tenant(key: str) -> Principal:
        return await principals.resolve(header(key))

    found = await asyncio.gather(*(tenant(key) for key in texts * 10))
    expected = [f"tenant-{number}" for number in range(5)] * 10
    assert [principal.tenant for principal in found] == expected
    assert len({principal.tenant_id for principal in found}) == len(set(expected))
    assert all(isinstance(principal.key_id, uuid.UUID) for principal in found)
