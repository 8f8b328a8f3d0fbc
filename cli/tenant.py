"""`forebay tenant`: create, list, show and update."""

from typing import Annotated, Literal

import cyclopts
from msgspec import UNSET

from cli import database, limits, table
from cli.errors import CommandError
from cli.limits import NO_OPTIONS, LimitOptions
from cli.whole_numbers import whole
from gateway.db import catalogue
from gateway.db.catalogue import TenantRow

app = cyclopts.App(name="tenant", help="Create, list, show and change tenants.")


@app.command
def create(
    name: str,
    /,
    *,
    plan: str | None = None,
    tier: Annotated[int | None, whole(0, 9)] = None,
    ignore_unknown_fields: bool = False,
    options: LimitOptions = NO_OPTIONS,
) -> None:
    """Create a tenant.

    Parameters
    ----------
    name
        Lower-case letters, digits and dashes.
    plan
        The plan that gives its tier and default limits.
    tier
        Instead of a plan: the plain plan of that tier. 0 is the most urgent; 1 when neither is given.
    ignore_unknown_fields
        Skip fields in its requests that are not known, instead of refusing them.
    options
        Its limits.
    """
    if plan is not None and tier is not None:
        raise CommandError("give a plan or a tier, not both")

    async def run(engine: database.AsyncEngine) -> TenantRow:
        return await catalogue.create_tenant(
            engine,
            name,
            plan=plan or await catalogue.plan_of_tier(engine, 1 if tier is None else tier),
            limits=options.stated(),
            ignore_unknown_fields=ignore_unknown_fields,
            by=database.author(),
        )

    made = database.run(run)
    print(f"tenant {name} created: {made.id}, plan {made.plan}")


@app.command(name="list")
def list_tenants(*, json: bool = False) -> None:
    """List tenants with their own limits.

    Parameters
    ----------
    json
        One JSON object a line.
    """
    _show(database.run(catalogue.list_tenants), json=json)


@app.command
def show(name: str, /, *, json: bool = False) -> None:
    """Show one tenant.

    Parameters
    ----------
    name
        Of the tenant.
    json
        As a JSON object.
    """
    _show([database.run(lambda engine: catalogue.find_tenant(engine, name))], json=json)


@app.command
def update(
    name: str,
    /,
    *,
    plan: str | None = None,
    status: Literal["active", "suspended"] | None = None,
    ignore_unknown_fields: Annotated[bool | None, cyclopts.Parameter(negative="--no-ignore-unknown-fields")] = None,
    options: LimitOptions = NO_OPTIONS,
) -> None:
    """Change a tenant. What is left out stays; every gateway obeys within a second.

    Parameters
    ----------
    name
        Of the tenant.
    plan
        Its new plan.
    status
        A suspended tenant's requests are refused.
    ignore_unknown_fields
        Skip fields in its requests that are not known, instead of refusing them.
    options
        Its limits.
    """
    changed = database.run(
        lambda engine: catalogue.update_tenant(
            engine,
            name,
            plan=UNSET if plan is None else plan,
            status=UNSET if status is None else status,
            ignore_unknown_fields=UNSET if ignore_unknown_fields is None else ignore_unknown_fields,
            limits=options.stated(),
            by=database.author(),
        )
    )
    print(f"tenant {name} changed: {changed.status}, plan {changed.plan}, tier {changed.tier}")


def _show(rows: list[TenantRow], *, json: bool) -> None:
    table.show_rows(
        rows,
        ("tenant", "status", "plan", "tier", "own limits", "unknown fields", "id"),
        lambda row: (
            row.name,
            row.status,
            row.plan,
            str(row.tier),
            limits.shown(row.limits),
            "ignored" if row.ignore_unknown_fields else "refused",
            str(row.id),
        ),
        json=json,
    )
