"""Prices: set, end and list. At any time a model has one price per plan, and one for all plans without their own.

A price by which bills were made does not change: prices begin and end now or in the future. A price may begin in the
past only where there was none.
"""

import uuid
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gateway.db import audit
from gateway.db.audit import SYSTEM, Author
from gateway.db.catalogue.errors import NotFound, Refused
from gateway.db.catalogue.models import find_model
from gateway.db.catalogue.paging import EVERYTHING, Paging
from gateway.db.catalogue.plans import find_plan
from gateway.db.catalogue.transaction import Database, connected, transaction
from gateway.db.tables import models, plans, prices
from shared.ids import uuid7

_HELD = "a price that has held cannot be changed for the past: bills were made by it"
UPM_MAX = 10**12  # upper bound in the table `prices`


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Micro-units of the currency (millionths of its unit) per million tokens."""

    input_upm: int
    cached_input_upm: int
    output_upm: int
    currency: str  # three letters


class PriceRow(msgspec.Struct, frozen=True, kw_only=True):
    """`plan` None is every plan without its own; `valid_to` is exclusive, None is open."""

    id: uuid.UUID
    model: str
    plan: str | None
    input_upm: int
    cached_input_upm: int
    output_upm: int
    currency: str
    valid_from: datetime
    valid_to: datetime | None


def _rows() -> "Select[*tuple[Any, ...]]":
    return (
        select(prices, models.c.alias.label("model"), plans.c.name.label("plan"))
        .join(models, models.c.id == prices.c.model_id)
        .outerjoin(plans, plans.c.id == prices.c.plan_id)
    )


def _row(row: Any) -> PriceRow:
    return PriceRow(**{name: getattr(row, name) for name in PriceRow.__struct_fields__})


async def list_prices(
    database: Database, *, model: str | None = None, history: bool = False, paging: Paging = EVERYTHING
) -> list[PriceRow]:
    """Present and future prices or, with `history`, all; ordered by id. Raises NotFound (model)."""
    statement = paging.of(_rows(), prices.c.id)
    if not history:
        statement = statement.where(prices.c.valid_to.is_(None) | (prices.c.valid_to > func.clock_timestamp()))
    async with connected(database) as connection:
        if model is not None:
            statement = statement.where(models.c.id == (await find_model(connection, model)).id)
        return [_row(row) for row in (await connection.execute(statement)).all()]


async def set_price(
    database: Database,
    model: str,
    terms: Terms,
    *,
    plan: str | None = None,
    since: datetime | None = None,
    by: Author = SYSTEM,
) -> PriceRow:
    """A price from `since` (default: now) until the next price of the same model and plan. Raises NotFound (model,
    plan), Refused.
    """
    async with transaction(database, "the price") as connection:
        whose, model_id, plan_id = await _whose(connection, model, plan)
        now = await _now(connection)
        since = since or now
        if since < now and plan_id is not None:
            await _check_nobody_was_billed(connection, model_id, since, now)
        current = await _at(connection, whose, since)
        if current is None:
            following = select(func.min(prices.c.valid_from)).where(whose, prices.c.valid_from > since)
            until = (await connection.execute(following)).scalar_one()
        else:
            until = current.valid_to
            await _end(connection, current, at=since, now=now)
        price_id = uuid7()
        row = {**msgspec.structs.asdict(terms), "id": price_id, "model_id": model_id, "plan_id": plan_id}
        await connection.execute(insert(prices).values(**row, valid_from=since, valid_to=until))
        made = await _find(connection, price_id)
        await audit.record(connection, by, "create", "price", price_id, after=made)
        return made


async def end_price(
    database: Database, model: str, *, plan: str | None = None, at: datetime | None = None, by: Author = SYSTEM
) -> PriceRow:
    """End a price at `at` (default: now): the price for all plans then applies instead, or none. Raises NotFound,
    Refused.
    """
    async with transaction(database, "the price") as connection:
        whose, _, _ = await _whose(connection, model, plan)
        now = await _now(connection)
        current = await _at(connection, whose, at or now)
        if current is None:
            raise NotFound(f"{model} has no price of its own for {plan or 'all plans'} at that time")
        before = await _find(connection, current.id)
        await _end(connection, current, at=at or now, now=now)
        after = await _find(connection, current.id)
        await audit.record(connection, by, "update", "price", current.id, before=before, after=after)
        return after


async def _find(connection: AsyncConnection, price_id: uuid.UUID) -> PriceRow:
    return _row((await connection.execute(_rows().where(prices.c.id == price_id))).one())


async def _whose(
    connection: AsyncConnection, model: str, plan: str | None
) -> tuple[ColumnElement[bool], uuid.UUID, uuid.UUID | None]:
    model_id = (await find_model(connection, model)).id
    if plan is None:
        return (prices.c.model_id == model_id) & prices.c.plan_id.is_(None), model_id, None
    plan_id = (await find_plan(connection, plan)).id
    return (prices.c.model_id == model_id) & (prices.c.plan_id == plan_id), model_id, plan_id


async def _now(connection: AsyncConnection) -> datetime:
    return (await connection.execute(select(func.clock_timestamp()))).scalar_one()


async def _at(connection: AsyncConnection, whose: ColumnElement[bool], moment: datetime) -> Any:
    holds = prices.c.valid_to.is_(None) | (prices.c.valid_to > moment)
    return (await connection.execute(select(prices).where(whose, prices.c.valid_from <= moment, holds))).one_or_none()


async def _check_nobody_was_billed(
    connection: AsyncConnection, model_id: uuid.UUID, since: datetime, until: datetime
) -> None:
    """Refuse a past start if the price for all plans applied then: the plan's tenants were billed by it. Raises
    Refused.
    """
    for_all = (prices.c.model_id == model_id) & prices.c.plan_id.is_(None)
    held = (prices.c.valid_from < until) & (prices.c.valid_to.is_(None) | (prices.c.valid_to > since))
    if (await connection.execute(select(prices.c.id).where(for_all & held).limit(1))).first():
        raise Refused(_HELD)


async def _end(connection: AsyncConnection, price: Any, *, at: datetime, now: datetime) -> None:
    if at < now:
        raise Refused(_HELD)
    if price.valid_from == at:
        raise Refused("a price that begins at that moment is there already")
    await connection.execute(update(prices).where(prices.c.id == price.id).values(valid_to=at))
