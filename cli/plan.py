"""`forebay plan`: create, list, show, update and delete; and the tiers that plans give."""

from typing import Annotated

import cyclopts
from msgspec import UNSET

from cli import database, limits, table
from cli.limits import NO_OPTIONS, LimitOptions
from cli.whole_numbers import whole
from gateway.db import catalogue
from gateway.db.catalogue import PlanRow, TierRow

app = cyclopts.App(name="plan", help="Create, list, show, change and delete plans.")


@app.command
def create(name: str, /, *, tier: Annotated[int, whole(0, 9)], options: LimitOptions = NO_OPTIONS) -> None:
    """Create a plan.

    Parameters
    ----------
    name
        Lower-case letters, digits and dashes.
    tier
        Of all of its tenants. 0 is the most urgent.
    options
        Its limits.
    """
    made = database.run(
        lambda engine: catalogue.create_plan(engine, name, tier=tier, limits=options.stated(), by=database.author())
    )
    print(f"plan {name} created: {made.id}, tier {tier}")


@app.command(name="list")
def list_plans(*, json: bool = False) -> None:
    """List plans with their limits.

    Parameters
    ----------
    json
        One JSON object a line.
    """
    _show(database.run(catalogue.list_plans), json=json)


@app.command
def show(name: str, /, *, json: bool = False) -> None:
    """Show one plan.

    Parameters
    ----------
    name
        Of the plan.
    json
        As a JSON object.
    """
    _show([database.run(lambda engine: catalogue.find_plan(engine, name))], json=json)


@app.command
def update(
    name: str, /, *, tier: Annotated[int | None, whole(0, 9)] = None, options: LimitOptions = NO_OPTIONS
) -> None:
    """Change a plan, for all of its tenants. What is left out stays; every gateway obeys within a second.

    Parameters
    ----------
    name
        Of the plan.
    tier
        Its new tier.
    options
        Its limits.
    """
    changed = database.run(
        lambda engine: catalogue.update_plan(
            engine,
            name,
            tier=UNSET if tier is None else tier,
            limits=options.stated(),
            by=database.author(),
        )
    )
    print(f"plan {name} changed: tier {changed.tier}")


@app.command
def delete(name: str, /) -> None:
    """Delete a plan that has no tenants."""
    database.run(lambda engine: catalogue.delete_plan(engine, name, by=database.author()))
    print(f"plan {name} deleted")


@app.command
def tiers(*, json: bool = False) -> None:
    """List tiers, the most urgent first.

    Parameters
    ----------
    json
        One JSON object a line.
    """
    rows = database.run(catalogue.list_tiers)
    columns = ("tier", "name", "wait ms", "first token ms", "queued requests", "queued tokens")
    table.show_rows(rows, columns, _tier, json=json)


def _tier(row: TierRow) -> tuple[str, ...]:
    bounds = (row.wait_ms_max, row.first_token_ms_max, row.queued_requests_max, row.queued_tokens_max)
    return str(row.id), row.name, *("-" if bound is None else f"{bound:,}" for bound in bounds)


def _show(rows: list[PlanRow], *, json: bool) -> None:
    table.show_rows(
        rows,
        ("plan", "tier", "limits", "id"),
        lambda row: (row.name, str(row.tier), limits.shown(row.limits), str(row.id)),
        json=json,
    )
