"""/admin/v1/prices: what tokens cost, in micro-units (millionths of the currency's unit) per million of them."""

from datetime import datetime
from typing import Annotated, Final

import msgspec

from gateway.api.admin.operation import Call
from gateway.api.admin.pages import Page, PageQuery, page
from gateway.api.admin.route import get, post
from gateway.api.admin.texts import Alias, Name, form
from gateway.db import prices
from gateway.db.prices import UPM_MAX, PriceRow, Terms

Upm = Annotated[int, msgspec.Meta(ge=0, le=UPM_MAX, description="Micro-units per million tokens.")]
Currency = Annotated[str, msgspec.Meta(pattern=form("[A-Z]{3}"), description="The same for every price.")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class NewPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cached_input_upm` null is as `input_upm`; `plan` null is every plan without a price of its own; `valid_from`
    null is now, and in the past only where there was no price.
    """

    model: Alias
    plan: Name | None = None
    input_upm: Upm
    cached_input_upm: Upm | None = None
    output_upm: Upm
    currency: Currency
    valid_from: Moment | None = None


class PriceEnd(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`at` null is now."""

    model: Alias
    plan: Name | None = None
    at: Moment | None = None


class PriceQuery(PageQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Alias | None = None
    history: bool = False


@post("/prices")
async def set_price(call: Call, body: NewPrice) -> PriceRow:
    """Give a model a price, until its next one. Bills already made stay as they are."""
    terms = Terms(
        input_upm=body.input_upm,
        cached_input_upm=body.input_upm if body.cached_input_upm is None else body.cached_input_upm,
        output_upm=body.output_upm,
        currency=body.currency,
    )
    return await prices.set_price(
        call.connection, body.model, terms, plan=body.plan, since=body.valid_from, by=call.author
    )


@post("/prices/end", status=200)
async def end_price(call: Call, body: PriceEnd) -> PriceRow:
    """End a price: a plan's, so that the one for every plan holds instead; else, so that none does."""
    return await prices.end_price(call.connection, body.model, plan=body.plan, at=body.at, by=call.author)


@get("/prices")
async def list_prices(call: Call, query: PriceQuery) -> Page[PriceRow]:
    """List prices that hold or will, or with `history` also those that have ended."""
    rows = await prices.list_prices(call.connection, model=query.model, history=query.history, paging=query.paging)
    return page(rows, query.limit)


ROUTES: Final = (set_price, end_price, list_prices)
