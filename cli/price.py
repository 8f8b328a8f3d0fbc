"""`forebay price`: what tokens cost."""

from datetime import datetime
from typing import Annotated

import cyclopts

from cli import database, table
from cli.moments import utc
from cli.whole_numbers import whole
from gateway.db import prices
from gateway.db.prices import PriceRow, Terms

app = cyclopts.App(name="price", help="Set, end and list prices.")


UPM = whole(0, prices.UPM_MAX)


@app.command(name="set")
def set_price(
    model: str,
    /,
    *,
    prompt: Annotated[int, UPM, cyclopts.Parameter(name="--input")],
    output: Annotated[int, UPM],
    cached_input: Annotated[int | None, UPM] = None,
    currency: str = "USD",
    plan: str | None = None,
    since: Annotated[datetime | None, cyclopts.Parameter(name="--from")] = None,
) -> None:
    """Give MODEL a price. Bills already made stay as they are.

    Parameters
    ----------
    model
        Its name, as clients ask for it.
    prompt
        Micro-units (millionths of the currency's unit) per million prompt tokens: 0.15 USD is 150000.
    output
        The same for output tokens.
    cached_input
        The same for prompt tokens that the prefix cache had; as --input when left out.
    currency
        Three letters, the same for every price.
    plan
        For tenants of this plan alone; left out, for every plan without a price of its own.
    since
        Its beginning (ISO 8601, UTC unless it says otherwise); now when left out. In the past only where no price
        was.
    """
    terms = Terms(
        input_upm=prompt,
        cached_input_upm=prompt if cached_input is None else cached_input,
        output_upm=output,
        currency=currency,
    )
    made = database.run(
        lambda engine: prices.set_price(engine, model, terms, plan=plan, since=utc(since), by=database.author())
    )
    print(f"price {made.id} of {model} for {plan or 'every plan'} from {made.valid_from:%Y-%m-%d %H:%M:%S} UTC")


@app.command
def end(
    model: str,
    /,
    *,
    plan: str | None = None,
    at: datetime | None = None,
) -> None:
    """End MODEL's price: for a plan, so that the price for every plan holds instead; else, so that none does.

    Parameters
    ----------
    model
        Its name.
    plan
        Whose price ends; left out, the one for every plan.
    at
        When (ISO 8601, UTC unless it says otherwise); now when left out.
    """
    ended = database.run(lambda engine: prices.end_price(engine, model, plan=plan, at=utc(at), by=database.author()))
    print(f"price {ended.id} of {model} ends at {ended.valid_to:%Y-%m-%d %H:%M:%S} UTC")


@app.command(name="list")
def list_prices(model: str | None = None, /, *, history: bool = False, json: bool = False) -> None:
    """List prices that hold or will, of all models or of MODEL.

    Parameters
    ----------
    model
        Its name.
    history
        Also those that have ended.
    json
        One JSON object a line.
    """
    rows = database.run(lambda engine: prices.list_prices(engine, model=model, history=history))
    table.show_rows(
        sorted(rows, key=lambda row: (row.model, row.plan or "", row.valid_from)),
        ("model", "plan", "input", "cached", "output", "currency", "from", "to", "id"),
        _cells,
        json=json,
    )


def _cells(row: PriceRow) -> tuple[str, ...]:
    upms = (f"{upm:,}" for upm in (row.input_upm, row.cached_input_upm, row.output_upm))
    until = "" if row.valid_to is None else f"{row.valid_to:%Y-%m-%d %H:%M:%S}"
    return (row.model, row.plan or "", *upms, row.currency, f"{row.valid_from:%Y-%m-%d %H:%M:%S}", until, str(row.id))
