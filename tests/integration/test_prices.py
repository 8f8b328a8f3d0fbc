"""Prices as operators set them and as gateways know them."""

import datetime as dt
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from cli.errors import CommandError
from gateway.admission.prices import PriceBook
from gateway.db import pools, prices
from gateway.db.catalogue import NotFound, Refused
from gateway.db.changes import Changes
from gateway.db.prices import Terms
from tests.clocks import HandClock
from tests.integration.bills import World, at
from tests.integration.test_catalogue import forebay

__all__ = ["forebay"]

M = 1_000_000
FAR = at("2126-01-01")
FARTHER = at("2126-06-01")


@pytest.fixture
async def connection(database: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    async with database.connect() as connection:
        await connection.exec_driver_sql(
            "INSERT INTO models (alias, context_length, vocab_size, card) VALUES ('m', 9, 9, '')"
        )
        yield connection


def terms(upm: int, currency: str = "EUR") -> Terms:
    return Terms(input_upm=upm, cached_input_upm=upm, output_upm=upm, currency=currency)


async def test_a_price_holds_until_the_next_and_history_stays(connection: AsyncConnection) -> None:
    first = await prices.set_price(connection, "m", terms(1))
    last = await prices.set_price(connection, "m", terms(3), since=FARTHER)
    between = await prices.set_price(connection, "m", terms(2), since=FAR)
    own = await prices.set_price(connection, "m", terms(9), plan="economy", since=FAR)
    ended = await prices.end_price(connection, "m", plan="economy", at=FARTHER)
    assert (own.valid_to, ended.valid_to) == (None, FARTHER)
    listed = await prices.list_prices(connection)
    listed.sort(key=lambda row: (row.plan or "", row.valid_from))
    assert [(row.input_upm, row.valid_to) for row in listed] == [(1, FAR), (2, FARTHER), (3, None), (9, FARTHER)]
    assert [row.id for row in listed[:3]] == [first.id, between.id, last.id]
    now = await prices.set_price(connection, "m", terms(5))
    assert now.valid_to == FAR
    assert first.id not in {row.id for row in await prices.list_prices(connection)}
    assert first.id in {row.id for row in await prices.list_prices(connection, model="m", history=True)}


async def test_only_where_no_price_was_may_one_begin_in_the_past(connection: AsyncConnection) -> None:
    await prices.set_price(connection, "m", terms(9), plan="economy", since=at("2025-01-01"))
    first = await prices.set_price(connection, "m", terms(1))
    early = await prices.set_price(connection, "m", terms(2), since=at("2026-01-01"))
    assert early.valid_to == first.valid_from
    for change in (
        prices.set_price(connection, "m", terms(3), since=at("2026-02-01")),
        prices.set_price(connection, "m", terms(3), plan="standard", since=at("2026-02-01")),
        prices.end_price(connection, "m", at=at("2026-02-01")),
        prices.set_price(connection, "m", terms(3), since=early.valid_from),
    ):
        with pytest.raises(Refused, match="cannot be changed for the past"):
            await change


async def test_what_cannot_be_priced_is_refused_by_name(connection: AsyncConnection) -> None:
    await prices.set_price(connection, "m", terms(1), since=FAR)
    for error, message, change in (
        (NotFound, "no model called x", prices.set_price(connection, "x", terms(1))),
        (NotFound, "no plan called x", prices.set_price(connection, "m", terms(1), plan="x")),
        (NotFound, "no price of its own for economy", prices.end_price(connection, "m", plan="economy")),
        (Refused, "at that moment", prices.set_price(connection, "m", terms(2), since=FAR)),
        (Refused, "all prices have one currency", prices.set_price(connection, "m", terms(1, "USD"))),
    ):
        with pytest.raises(error, match=message):
            await change


async def test_the_book_follows_prices_that_change_under_it(database: AsyncEngine, database_url: str) -> None:
    async with pools.create(database_url, connections_max=1) as pool:
        bills = World(pool)
        model, economy, standard = await bills.model("m"), await bills.plan("economy"), await bills.plan("standard")
        clock = HandClock(at("2026-06-15").timestamp())
        book, changes = PriceBook(database, clock=clock), Changes(database)
        await changes.look(0)
        await book.read()
        assert book.ceiling_micro(model, standard, 10, 5) == 0
        await bills.price(model, (3 * M, 1 * M, 10 * M), since=at("2026-01-01"), until=at("2026-07-01"))
        await bills.price(model, (4 * M, 4 * M, 20 * M), since=at("2026-07-01"))
        await bills.price(model, (1 * M, 0, 0), plan="economy", since=at("2026-01-01"), until=at("2026-07-01"))
        await book.read()
        assert book.ceiling_micro(model, standard, 10, 5) == 0
        book.changed(await changes.look(0))
        await book.read()
        assert book.ceiling_micro(model, standard, 10, 5) == 10 * 3 + 5 * 10
        assert book.ceiling_micro(model, None, 10, 5) == 80
        assert book.ceiling_micro(model, economy, 10, 5) == 10
        assert book.ceiling_micro(uuid.uuid4(), economy, 10, 5) == 0
        clock.now += dt.timedelta(days=30).total_seconds()
        assert book.ceiling_micro(model, economy, 10, 5) == 140


async def test_the_book_reads_again_what_it_could_not_read(database: AsyncEngine, database_url: str) -> None:
    async with pools.create(database_url, connections_max=1) as pool:
        bills = World(pool)
        model = await bills.model("m")
        book = PriceBook(database)
        await bills.price(model, (1 * M, 0, 0), since=at("2026-01-01"))
        await pool.execute("ALTER TABLE prices RENAME TO elsewhere")
        with pytest.raises(Exception, match="prices"):
            await book.read()
        await pool.execute("ALTER TABLE elsewhere RENAME TO prices")
        await book.read()
        assert book.ceiling_micro(model, None, 10, 0) == 10


async def test_commands_set_list_and_end_prices(database_url: str, forebay: Callable[..., Awaitable[str]]) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await World(connection).model("m")
    finally:
        await connection.close()
    await forebay("price", "set", "m", "--input", "150000", "--output", "600000", "--from", "2126-01-01")
    await forebay("price", "set", "m", "--input", "3", "--cached-input", "1", "--output", "4", "--plan", "economy")
    every, economy = map(json.loads, (await forebay("price", "list", "--json")).splitlines())
    assert (every["input_upm"], every["cached_input_upm"], every["plan"]) == (150_000, 150_000, None)
    assert every["valid_from"] == "2126-01-01T00:00:00Z"
    assert (economy["cached_input_upm"], economy["plan"], economy["currency"]) == (1, "economy", "USD")
    await forebay("price", "end", "m", "--plan", "economy")
    assert len((await forebay("price", "list", "m", "--json")).splitlines()) == 1
    assert "economy" in await forebay("price", "list", "--history")
    with pytest.raises(CommandError, match="no model called x"):
        await forebay("price", "set", "x", "--input", "1", "--output", "1")
