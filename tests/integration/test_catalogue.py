"""What operators do to the catalogue, the demo tenants, and the commands that do both."""

import asyncio
import getpass
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy import text as statement
from sqlalchemy.ext.asyncio import AsyncEngine

from cli.errors import CommandError
from cli.main import app
from gateway import keys
from gateway.db import catalogue, pools, queries, seed
from gateway.db.catalogue import AlreadyExists, Limits, NotFound, Refused
from gateway.db.catalogue.rules import ANY, RULES
from gateway.db.catalogue.transaction import transaction
from gateway.ledger.writer import Writer
from tests.integration.test_ledger import payload

HUGE = 2**63 - 1
INNER = "usage_events|usage_completeness|limiter_epoch|inflight|budget_state"  # tables that no client's call writes to


async def test_a_tenant_is_listed_with_what_it_was_given(database: AsyncEngine) -> None:
    await catalogue.create_tenant(database, "acme", plan="economy", limits=Limits(rpm=0, tpm=5))
    await catalogue.create_tenant(database, "zeta", plan="interactive", limits=Limits())
    acme, zeta = await catalogue.list_tenants(database)
    assert (acme.name, acme.plan, acme.tier, acme.status) == ("acme", "economy", 2, "active")
    assert acme.limits == Limits(rpm=0, tpm=5)
    assert (zeta.tier, zeta.limits) == (0, Limits())


@pytest.mark.parametrize(
    ("name", "plan", "limits", "error", "message"),
    [
        ("acme", "standard", Limits(), AlreadyExists, "a tenant called acme exists already"),
        ("other", "nothing", Limits(), NotFound, "no plan called nothing"),
        ("Not A Name", "standard", Limits(), Refused, "is refused: a name has lower-case letters"),
        ("other", "standard", Limits(tpm=HUGE), Refused, "is refused: a limit is 0 to 10000000000;"),
        ("other", "standard", Limits(rpm=-1), Refused, "is refused: a limit is 0 to 10000000000;"),
    ],
)
async def test_what_cannot_be_is_refused_by_name_and_leaves_nothing(
    database: AsyncEngine, *, name: str, plan: str, limits: Limits, error: type[Exception], message: str
) -> None:
    await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits())
    with pytest.raises(error, match=message):
        await catalogue.create_tenant(database, name, plan=plan, limits=limits)
    assert [tenant.name for tenant in await catalogue.list_tenants(database)] == ["acme"]


async def test_every_constraint_of_the_schema_has_its_rule_in_words(sql: asyncpg.Connection) -> None:
    found = await sql.fetch(
        "SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'x')"
        " AND conrelid::regclass::text !~ $1",
        f"^({INNER})",
    )
    assert {row["conname"] for row in found} == set(RULES)


async def test_a_constraint_without_words_is_not_named(database: AsyncEngine) -> None:
    with pytest.raises(Refused) as refused:
        async with transaction(database, "it") as connection:
            await connection.execute(statement("CREATE TEMP TABLE t (n int CONSTRAINT t_secret_name CHECK (n > 0))"))
            await connection.execute(statement("INSERT INTO t VALUES (0)"))
    assert str(refused.value) == f"it is refused: {ANY}"


async def test_keys_are_stored_as_digests_and_revoked_once(database: AsyncEngine, database_url: str) -> None:
    await catalogue.create_tenant(database, "acme", plan="standard", limits=Limits())
    text, record = keys.generate("live")
    await catalogue.create_key(
        database, "acme", record, scopes=frozenset({"inference"}), name="ci", limits=Limits(tpm=9)
    )
    with pytest.raises(AlreadyExists):
        await catalogue.create_key(database, "acme", record, scopes=frozenset({"inference"}))
    with pytest.raises(NotFound):
        await catalogue.create_key(database, "nobody", keys.generate("live")[1], scopes=frozenset({"inference"}))
    with pytest.raises(NotFound):
        await catalogue.revoke_key(database, "000000000000")
    await catalogue.revoke_key(database, record.public_id)
    [once] = await catalogue.list_keys(database, "acme")
    await catalogue.revoke_key(database, record.public_id)
    [twice] = await catalogue.list_keys(database)
    assert once == twice
    assert (once.tenant, once.name, once.scopes, once.last4) == ("acme", "ci", ("inference",), text[-4:])
    assert once.revoked_at is not None
    connection = await asyncpg.connect(database_url)
    try:
        row = dict(await connection.fetchrow("SELECT * FROM api_keys"))
    finally:
        await connection.close()
    assert text[-20:] not in str(row)


async def test_a_model_is_registered_once_by_name(database: AsyncEngine) -> None:
    first = await queries.register_model(database, "m", context_length=10, vocab_size=5, card="a" * 64)
    again = await queries.register_model(database, "m", context_length=99, vocab_size=9, card="b" * 64)
    other = await queries.register_model(database, "n", context_length=10, vocab_size=5, card="a" * 64)
    assert first == again != other


async def test_the_demo_tenants_keep_their_keys_and_what_was_changed(database: AsyncEngine, database_url: str) -> None:
    made = await seed.demo(database_url, {})
    assert set(made) == {"acme", "hobby", "admin"}
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("UPDATE quotas SET allowed = 7")
    finally:
        await connection.close()
    assert await seed.demo(database_url, made) == made
    tenants = {tenant.name: tenant for tenant in await catalogue.list_tenants(database)}
    assert (tenants["acme"].tier, tenants["hobby"].tier) == (0, 2)
    assert tenants["hobby"].limits == Limits(rpm=7, tpm=7)
    assert {key.tenant: key.scopes for key in await catalogue.list_keys(database)} == {
        "acme": ("inference",),
        "hobby": ("inference",),
        "admin": ("admin",),
    }


async def test_demo_keys_that_are_known_come_back_in_an_empty_database(
    database: AsyncEngine, database_url: str
) -> None:
    known = {name: keys.generate("demo")[0] for name in ("acme", "hobby", "admin")}
    assert await seed.demo(database_url, known) == known
    for key in known.values():
        record = keys.record(key)
        assert record is not None
        stored = await queries.find_key(database, record.public_id)
        assert stored is not None
        assert stored.digest == record.digest


@pytest.fixture
def forebay(
    database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Awaitable[str]]:
    """Runs a command in a thread, as `main` would in a process, and returns what it printed."""
    monkeypatch.setenv("FOREBAY_POSTGRES_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")

    async def run(*arguments: str) -> str:
        await asyncio.to_thread(app, arguments, result_action="return_value")
        return capsys.readouterr().out

    return run


async def test_the_commands_from_schema_to_usage(
    database: AsyncEngine, database_url: str, forebay: Callable[..., Awaitable[str]]
) -> None:
    assert "schema is at revision" in await forebay("migrate")
    assert "schema is at revision" in await forebay("migrate", "--check")
    await forebay("tenant", "create", "acme", "--tier", "0", "--rpm", "60", "--tpm", "0")
    listed = json.loads(await forebay("tenant", "list", "--json"))
    assert (listed["tier"], listed["limits"]) == (0, {"rpm": 60, "tpm": 0})
    assert "acme" in await forebay("tenant", "list")
    key = (await forebay("key", "create", "acme", "--scope", "admin")).strip()
    parsed = keys.parse(key)
    assert parsed is not None
    stored = await queries.find_key(database, parsed.public_id)
    assert stored is not None
    assert stored.digest == parsed.digest
    assert key not in await forebay("key", "list")
    assert json.loads(await forebay("key", "list", "acme", "--json"))["scopes"] == ["admin"]
    await forebay("key", "revoke", parsed.public_id)
    assert json.loads(await forebay("key", "list", "--json"))["revoked_at"]
    model = await queries.register_model(database, "m", context_length=10, vocab_size=5, card="a")
    async with pools.create(database_url, connections_max=1) as pool:
        await Writer(pool).write([payload(tenant=str(stored.tenant_id), model=str(model)), payload()])
    used = json.loads(await forebay("usage", "show", "--tenant", "acme", "--json"))
    assert used == {
        "tenant": "acme",
        "model": "m",
        "requests": 1,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "completion_tokens": 11,
        "cost_micro": 0,
        "unpriced": 1,
    }
    assert len((await forebay("usage", "show", "--json")).splitlines()) == 2
    assert await forebay("usage", "show", "--since", "2999-01-01", "--json") == ""
    assert await forebay("usage", "show", "--until", "2020-01-01", "--json") == ""


async def test_the_commands_change_everything_that_can_be_changed(
    database: AsyncEngine, forebay: Callable[..., Awaitable[str]]
) -> None:
    async def listed(*arguments: str) -> list[dict]:
        return [json.loads(line) for line in (await forebay(*arguments, "--json")).splitlines()]

    await queries.register_model(database, "org/m", context_length=10, vocab_size=5, card="a")
    await forebay("plan", "create", "gold", "--tier", "0", "--tpm", "9")
    await forebay("plan", "update", "gold", "--tier", "2", "--tpm", "unlimited", "--rpm", "0")
    [plan] = await listed("plan", "show", "gold")
    assert (plan["tier"], plan["limits"]) == (2, {"rpm": 0, "tpm": None})
    assert [tier["id"] for tier in await listed("plan", "tiers")] == [0, 1, 2]
    await forebay("tenant", "create", "acme", "--plan", "gold")
    await forebay("tenant", "update", "acme", "--plan", "economy", "--status", "suspended", "--ignore-unknown-fields")
    [tenant] = await listed("tenant", "show", "acme")
    assert (tenant["plan"], tenant["status"], tenant["ignore_unknown_fields"]) == ("economy", "suspended", True)
    await forebay("plan", "delete", "gold")
    assert "gold" not in await forebay("plan", "list")

    listings = ("--model", "org/m", "--network", "192.0.2.1", "--expires-at", "2999-01-01")
    text = (await forebay("key", "create", "acme", "--name", "ci", "--rpm", "5", *listings)).strip()
    public_id = text.split("-")[2]
    [key] = await listed("key", "show", public_id)
    assert (key["models"], key["networks"], key["limits"]) == (["org/m"], ["192.0.2.1/32"], {"rpm": 5})
    assert key["expires_at"] == "2999-01-01T00:00:00Z"
    await forebay("key", "update", public_id, "--any-model", "--any-network", "--no-expiry", "--rpm", "unlimited")
    [key] = await listed("key", "show", public_id)
    assert (key["models"], key["networks"], key["expires_at"], key["limits"]) == (None, None, None, {"rpm": None})
    rotated = (await forebay("key", "rotate", public_id, "--overlap-s", "60")).strip()
    assert rotated != text
    assert keys.parse(rotated) is not None

    await forebay("quota", "set", "tpm", "7", "--key", public_id, "--burst", "3")
    [quota, _] = sorted(await listed("quota", "list", "--key", public_id), key=lambda row: row["metric"], reverse=True)
    assert (quota["allowed"], quota["burst"]) == (7, 3)
    await forebay("quota", "delete", quota["id"])
    assert len(await listed("quota", "list")) == 1
    shadow = ("--tenant", "acme", "--model", "org/m", "--mode", "shadow")
    assert "concurrency 4" in await forebay("quota", "set", "concurrency", "4", *shadow)
    [quota] = await listed("quota", "list", "--model", "org/m")
    assert [quota[name] for name in ("tenant", "model", "allowed", "mode")] == ["acme", "org/m", 4, "shadow"]
    assert "shadow" in await forebay("quota", "list")
    assert (await listed("tenant", "show", "acme"))[0]["limits"] == {}
    await forebay("quota", "delete", quota["id"])
    assert await listed("quota", "list", "--model", "org/m") == []
    await forebay("model", "close", "org/m")
    await forebay("model", "grant", "org/m", "--tenant", "acme")
    [grant] = await listed("model", "grants", "org/m")
    assert [model["access"] for model in await listed("model", "list")] == ["granted"]
    await forebay("model", "ungrant", grant["id"])
    await forebay("model", "open", "org/m")

    changes = await listed("audit", "list")
    assert {change["actor"] for change in changes} == {f"cli:{getpass.getuser()}"}
    assert [change["action"] for change in await listed("audit", "list", "--object-type", "key")] == [
        "rotate",
        "update",
        "create",
    ]
    assert {change["object_type"] for change in changes} == {"tenant", "plan", "key", "quota", "model", "grant"}
    assert text.split("-")[3] not in json.dumps(changes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tenant", "create", "x", "--plan", "nothing"), "^there is no plan called nothing$"),
        (("tenant", "create", "x", "--plan", "standard", "--tier", "1"), "a plan or a tier, not both"),
        (("tenant", "create", "x", "--tier", "7"), "no plan of tier 7"),
        (("key", "revoke", "000000000000"), "no key 000000000000"),
        (("key", "create", "nobody", "--env", "NOT"), "an environment is 1 to 8 lower-case letters"),
        (("key", "create", "nobody", "--network", "192.0.2.1/24"), "has host bits set"),
        (("quota", "set", "rps", "1", "--tenant", "x"), "a metric is one of rpm, tpm"),
        (("quota", "set", "concurrency", "9", "--tenant", "x", "--burst", "3"), "concurrency has no burst"),
        (("quota", "set", "tpm", "1"), "of one plan, one tenant or one key"),
        (("quota", "set", "tpm", "1", "--tenant", "x"), "no tenant called x"),
        (("model", "close", "nothing"), "no model called nothing"),
        (("key", "list", "nobody"), "no tenant called nobody"),
        (("usage", "show", "--tenant", "nobody"), "no tenant called nobody"),
        (("quota", "list", "--plan", "nothing"), "no plan called nothing"),
        (("quota", "list", "--key", "000000000000"), "no key 000000000000"),
        (("model", "grants", "nothing"), "no model called nothing"),
        (("price", "list", "nothing"), "no model called nothing"),
        (("usage", "rebuild", "--since", "2026-11-01T23:00-02:00", "--until", "2026-11-02"), "end before"),
    ],
)
async def test_a_command_that_fails_says_why(
    forebay: Callable[..., Awaitable[str]], arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(CommandError, match=message):
        await forebay(*arguments)


async def test_a_command_needs_a_database_of_its_own_schema(
    database_url: str, forebay: Callable[..., Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("UPDATE alembic_version SET version_num = '9999'")
    finally:
        await connection.close()
    for command in (("tenant", "list"), ("migrate",), ("usage", "show")):
        with pytest.raises(CommandError, match="newer than this program's"):
            await forebay(*command)
    monkeypatch.setenv("FOREBAY_POSTGRES_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    monkeypatch.setenv("FOREBAY_NATS_URL", "nats://127.0.0.1:1")
    for command in (("tenant", "list"), ("migrate", "--check"), ("ledger",)):
        with pytest.raises(CommandError, match=r"Connect|refused"):
            await forebay(*command)


def test_a_process_without_a_database_ends_with_one_sentence() -> None:
    command = [sys.executable, "-m", "cli.main", "tenant", "list"]
    result = subprocess.run(command, env={"PATH": ""}, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("forebay: FOREBAY_POSTGRES_URL is not set")
    assert len(result.stderr.splitlines()) == 1
