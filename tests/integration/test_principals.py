"""Keys and principals against a real catalogue: who gets in, how soon a change is obeyed, and Postgres away."""

import asyncio
import contextlib
import hmac
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import AsyncEngine

from gateway import keys
from gateway.auth.principals import Principal, Principals
from gateway.db import catalogue, engine, queries
from gateway.db.catalogue import Limits
from gateway.errors import Forbidden, InvalidKey, Unavailable
from tests.clocks import HandClock

WITHIN_S = 60.0  # a slow machine's second


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


async def test_a_known_key_asks_the_database_nothing(database: AsyncEngine) -> None:
    principals = Principals(database)  # without its poll, so that no change makes a key due
    key = await make_key(database)
    await principals.resolve(header(key))
    statements: list[str] = []
    event.listen(
        database.sync_engine,
        "before_cursor_execute",
        lambda *args: statements.append(args[2]) if "api_keys" in args[2] else None,
    )
    for _ in range(20):
        await principals.resolve(header(key))
    assert statements == []


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


async def test_whatever_is_wrong_with_a_key_the_same_comparisons_are_made(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two, of digests, by the one function that takes the same time for any two."""
    expired, revoked = await make_key(database), await make_key(database)
    await sql.execute("UPDATE api_keys SET expires_at = now() WHERE public_id = $1", expired.split("-")[2])
    await catalogue.revoke_key(database, revoked.split("-")[2])
    forged = keys.renew("test", (await make_key(database)).split("-")[2])[0]
    compared: list[int] = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(a + b)) or compare(a, b))
    for key in (keys.generate("test")[0], forged, expired, revoked):
        for _ in range(2):  # from Postgres, and as it is remembered
            compared.clear()
            assert await refused(principals, key)
            assert compared == [64, 64]


async def test_a_refused_key_is_read_as_often_as_one_that_does_not_exist(
    database: AsyncEngine, sql: asyncpg.Connection
) -> None:
    """Or the time of an answer would tell that the id exists."""
    expired, revoked = await make_key(database), await make_key(database)
    await sql.execute("UPDATE api_keys SET expires_at = to_timestamp(1) WHERE public_id = $1", expired.split("-")[2])
    await catalogue.revoke_key(database, revoked.split("-")[2])
    good = await make_key(database)
    forged = keys.renew("test", good.split("-")[2])[0]
    reads: list[str] = []
    event.listen(
        database.sync_engine,
        "before_cursor_execute",
        lambda *args: reads.append(args[2]) if "api_keys" in args[2] else None,
    )
    clock = HandClock()
    principals = Principals(database, clock=clock)  # without its poll, so that no change makes a key due

    async def reading(key: str) -> list[int]:
        """How often the key is read at once, again, after 4 s, after 6 s and after 6 s more."""
        counts: list[int] = []
        for pause_s in (0, 0, 4, 6, 6):
            clock.now += pause_s
            reads.clear()
            assert await refused(principals, key)
            counts.append(len(reads))
        return counts

    unknown = await reading(keys.generate("test")[0])
    assert unknown == [1, 0, 0, 1, 1]
    for key in (forged, expired, revoked):
        assert await reading(key) == unknown
    await principals.resolve(header(good))
    reads.clear()
    clock.now += 60
    await principals.resolve(header(good))
    assert reads == []
    assert await reading(forged) == unknown  # also where its owner's use has made it known


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
        "UPDATE tenants SET ignore_unknown_fields = true",
        "UPDATE api_keys SET models = '{}'",
        "UPDATE api_keys SET networks = '{192.0.2.0/24}'",
        "INSERT INTO models (alias, context_length, vocab_size, card, access) VALUES ('m', 1, 1, 'c', 'granted')",
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


async def test_every_table_that_a_key_is_read_from_tells_of_every_change(
    database: AsyncEngine, sql: asyncpg.Connection
) -> None:
    """Whatever table `find_key` comes to read, its triggers must be there: asked of the statements themselves."""
    key = await make_key(database)
    read = set[str]()
    event.listen(
        database.sync_engine,
        "before_cursor_execute",
        lambda *args: read.update(re.findall(r"(?:FROM|JOIN) (\w+)", args[2])),
    )
    await queries.find_key(database, key.split("-")[2])
    assert {"api_keys", "tenants", "plans", "quotas", "models", "model_grants"} <= read
    rows = await sql.fetch(
        "SELECT event_object_table AS name, event_manipulation AS change FROM information_schema.triggers"
        " UNION SELECT tgrelid::regclass::text, 'TRUNCATE' FROM pg_trigger WHERE tgtype & 32 > 0"
    )
    told = {(row["name"], row["change"]) for row in rows}
    assert {(table, change) for table in read for change in ("INSERT", "UPDATE", "DELETE", "TRUNCATE")} <= told


async def test_a_former_secret_works_until_its_moment_and_the_new_one_from_then_on(
    database: AsyncEngine, sql: asyncpg.Connection
) -> None:
    clock = HandClock(now=time.time())
    async with Principals(database, clock=clock) as principals:
        old = await make_key(database)
        before = await principals.resolve(header(old))
        new, record = keys.renew("test", before.public_id)
        await catalogue.rotate_key(database, record, overlap_s=600)

        async def accepted() -> bool:
            return not await refused(principals, new)

        await until(accepted)
        assert await principals.resolve(header(old)) == await principals.resolve(header(new)) == before
        clock.now += 700
        assert await refused(principals, old)
        assert not await refused(principals, new)
        last, record = keys.renew("test", before.public_id)
        await catalogue.rotate_key(database, record, overlap_s=0)
        await until(lambda: refused(principals, new))
        await catalogue.revoke_key(database, record.public_id)
        await until(lambda: refused(principals, last))


async def test_a_revoked_key_is_refused_with_its_former_secret_too(
    database: AsyncEngine, principals: Principals
) -> None:
    old = await make_key(database)
    new, record = keys.renew("test", old.split("-")[2])
    await catalogue.rotate_key(database, record, overlap_s=600)
    await catalogue.revoke_key(database, record.public_id)
    assert await refused(principals, old)
    assert await refused(principals, new)


async def test_which_models_a_key_may_use(database: AsyncEngine, sql: asyncpg.Connection) -> None:
    ids = {
        name: await queries.register_model(database, name, context_length=9, vocab_size=5, card="c")
        for name in ("open", "granted")
    }
    await make_key(database, "acme")

    async def usable(models: tuple[str, ...] | None) -> frozenset[uuid.UUID] | None:
        record = keys.generate("test")[1]
        await catalogue.create_key(database, "acme", record, scopes={"inference"}, models=models)
        stored = await queries.find_key(database, record.public_id)
        assert stored is not None
        return stored.models

    assert await usable(None) is None
    assert await usable(()) == frozenset()
    assert await usable(("granted",)) == {ids["granted"]}
    await catalogue.set_access(database, "granted", "granted")
    assert await usable(None) == {ids["open"]}
    assert await usable(("granted",)) == frozenset()
    of_plan = await catalogue.create_grant(database, "granted", plan="standard")
    await catalogue.create_grant(database, "granted", plan="economy")
    assert await usable(None) is None
    await catalogue.delete_grant(database, of_plan.id)
    assert await usable(None) == {ids["open"]}
    await catalogue.create_grant(database, "granted", tenant="acme")
    assert await usable(("granted", "open")) == {ids["granted"], ids["open"]}


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


async def test_only_a_known_good_key_within_its_limits_can_be_served_without_the_database(
    database: AsyncEngine, principals: Principals
) -> None:
    def some() -> bool:
        return principals.serve_some(lambda _: True)

    key = await make_key(database)
    await principals.resolve(header(await make_key(database, scopes=frozenset({"admin"}))))
    assert not some()
    await principals.resolve(header(key))
    assert some()
    assert not principals.serve_some(lambda limits: {limit.allowed for limit in limits} != {60, 1_000})
    await catalogue.revoke_key(database, key.split("-")[2])
    await until(lambda: refused(principals, key))
    assert not some()


async def test_a_principal_of_another_tenant_never_leaks(database: AsyncEngine, principals: Principals) -> None:
    texts = [await make_key(database, f"tenant-{number}") for number in range(5)]

    async def tenant(key: str) -> Principal:
        return await principals.resolve(header(key))

    found = await asyncio.gather(*(tenant(key) for key in texts * 10))
    expected = [f"tenant-{number}" for number in range(5)] * 10
    assert [principal.tenant for principal in found] == expected
    assert len({principal.tenant_id for principal in found}) == len(set(expected))
    assert all(isinstance(principal.key_id, uuid.UUID) for principal in found)


async def test_a_tiers_bounds_come_with_the_key_and_a_change_is_obeyed(
    database: AsyncEngine, principals: Principals, sql: asyncpg.Connection
) -> None:
    """Null is no bound and 0 lets nothing wait; what another tier is given changes nothing here."""
    key = await make_key(database)
    bounds = (await principals.resolve(header(key))).tier_bounds
    assert (bounds.wait_ms_max, bounds.first_token_ms_max) == (60_000, 60_000)
    assert (bounds.queued_requests_max, bounds.queued_tokens_max) == (None, None)
    await sql.execute("UPDATE tiers SET wait_ms_max = 1 WHERE id = 2")
    await sql.execute(
        "UPDATE tiers SET wait_ms_max = 5000, first_token_ms_max = NULL, queued_requests_max = 0 WHERE id = 1"
    )

    async def obeyed() -> bool:
        return (await principals.resolve(header(key))).tier_bounds.wait_ms_max == 5_000

    await until(obeyed)
    bounds = (await principals.resolve(header(key))).tier_bounds
    assert (bounds.first_token_ms_max, bounds.queued_requests_max, bounds.queued_tokens_max) == (None, 0, None)
