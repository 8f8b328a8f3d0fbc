"""Moments that no program can read (infinity, years before 1970 and after 9998): neither SQL nor the API stores one,
and a database that has some is put right.
"""

import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

import migrations
from gateway import keys
from gateway.admission.prices import PriceBook
from gateway.auth.principals import Principals
from gateway.db import catalogue, engine
from gateway.errors import InvalidKey
from tests.integration.administration import administered, call, make_key, make_tenant

UNREADABLE = ("infinity", "-infinity", "0044-03-15 BC", "0001-01-01 UTC", "12026-01-01 UTC")
MIGRATION = Path(migrations.__file__).parent / "versions" / "v0010_moments.sql"
PRICE = (
    "INSERT INTO prices (model_id, input_upm, cached_input_upm, output_upm, currency, valid_from, valid_to)"
    " SELECT id, 1, 1, 1, 'EUR', $1::text::timestamptz, $2::text::timestamptz FROM models"
)


@pytest.fixture
async def sql(database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(database_url)
    await connection.execute("INSERT INTO models (alias, context_length, vocab_size, card) VALUES ('m', 9, 9, '')")
    yield connection
    await connection.close()


@pytest.mark.parametrize("moment", UNREADABLE)
async def test_sql_cannot_store_one(database_url: str, sql: asyncpg.Connection, moment: str) -> None:
    database = engine.create(database_url)
    await catalogue.create_tenant(database, "acme", plan="standard")
    await catalogue.create_key(database, "acme", keys.generate("test")[1], scopes=("inference",))
    await database.dispose()
    for column in ("expires_at", "revoked_at"):
        with pytest.raises(asyncpg.CheckViolationError, match=f"api_keys_{column}_range"):
            await sql.execute(f"UPDATE api_keys SET {column} = '{moment}'")
    with pytest.raises(asyncpg.CheckViolationError, match="api_keys_former_until_range"):
        await sql.execute(f"UPDATE api_keys SET former_digest = secret_digest, former_until = '{moment}'")
    for period in ((moment, None), ("2026-01-01", moment)):
        with pytest.raises(asyncpg.CheckViolationError, match=r"prices_(valid|period)"):
            await sql.execute(PRICE, *period)


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999Z"])
@pytest.mark.usefixtures("sql")
async def test_the_api_refuses_one_by_name(database_url: str, moment: str) -> None:
    async with administered(database_url) as gateway:
        await make_tenant(gateway)
        key = (await make_key(gateway))["key"]["public_id"]
        price = {"model": "m", "input_upm": 1, "output_upm": 1, "currency": "EUR", "valid_from": moment}
        for method, path, body in (
            ("POST", "/keys", {"tenant": "acme", "expires_at": moment}),
            ("PATCH", f"/keys/{key}", {"expires_at": moment}),
            ("POST", "/prices", price),
        ):
            refused = await call(gateway, method, path, body)
            assert (refused.status, refused.error["code"]) == (400, "invalid_value"), path
            assert "range" in refused.error["message"]


async def test_those_that_were_stored_before_are_put_right(database_url: str, sql: asyncpg.Connection) -> None:
    """What never ended has no end, what ended before time began has ended; and all of it can be read again."""
    constraints = await sql.fetch(
        "SELECT conrelid::regclass AS t, conname FROM pg_constraint WHERE conname ~ '_range$'"
    )
    for table, name in constraints:
        if MIGRATION.read_text().find(f" {name} ") > 0:
            await sql.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    database = engine.create(database_url)
    await catalogue.create_tenant(database, "acme", plan="standard")
    texts = [keys.generate("test") for _ in UNREADABLE]
    for (_, record), moment in zip(texts, UNREADABLE, strict=True):
        await catalogue.create_key(database, "acme", record, scopes=("inference",))
        await sql.execute(
            "UPDATE api_keys SET expires_at = $1::text::timestamptz WHERE public_id = $2", moment, record.public_id
        )
    await sql.execute(PRICE, "infinity", None)
    await sql.execute(PRICE, "-infinity", "0001-01-01 UTC")
    await sql.execute(PRICE, "0001-01-01 UTC", "12026-01-01")
    await sql.execute(MIGRATION.read_text())
    async with Principals(database) as principals:
        good = {moment: await accepts(principals, text) for moment, (text, _) in zip(UNREADABLE, texts, strict=True)}
    assert good == {moment: moment in ("infinity", "12026-01-01 UTC") for moment in UNREADABLE}
    book = PriceBook(database)
    await book.read()
    await database.dispose()
    [price] = await sql.fetch("SELECT model_id, valid_from, valid_to FROM prices")
    assert book.ceiling_micro(price["model_id"], None, 10**6, 0) == 1
    assert (price["valid_from"], price["valid_to"]) == (dt.datetime.fromtimestamp(0, dt.UTC), None)


async def accepts(principals: Principals, text: str) -> bool:
    try:
        await principals.resolve([f"Bearer {text}"])
    except InvalidKey:
        return False
    return True
