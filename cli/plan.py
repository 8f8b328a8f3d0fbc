"""`forebay plan`: create, list, show, update and delete; and the tiers that plans give."""

import cyclopts
from msgspec import UNSET

from cli import database, limits, table
from cli.limits import NO_OPTIONS, LimitOptions
from gateway.db import catalogue
from gateway.db.catalogue import PlanRow

app = cyclopts.App(name="plan", help="Create, list, show, change and delete plans.")


@app.command
def create(name: str, /, *, tier: int, options: LimitOptions = NO_OPTIONS) -> None:
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
def update(name: str, /, *, tier: int | None = None, options: LimitOptions = NO_OPTIONS) -> None:
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
    table.show_rows(rows, ("tier", "name"), lambda row: (str(row.id), row.name), json=json)


def _show(rows: list[PlanRow], *, json: bool) -> None:
    table.show_rows(
        rows,
        ("plan", "tier", "limits", "id"),
        lambda row: (row.name, str(row.tier), limits.shown(row.limits), str(row.id)),
        json=json,
    )
