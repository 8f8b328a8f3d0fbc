"""`forebay tenant`: create and list."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import cyclopts
import msgspec

from cli import database, table
from cli.errors import CommandError
from gateway.admission.bucket import LIMIT_MAX
from gateway.db import catalogue
from gateway.db.catalogue import Limits, TenantRow

app = cyclopts.App(name="tenant", help="Create and list tenants.")


def _whole(_: object, tokens: Sequence[cyclopts.Token]) -> int:
    """Cyclopts itself rounds 1.5 to 2, which is no limit that anybody asked for."""
    text = tokens[0].value
    if not text.isdecimal() or int(text) > LIMIT_MAX:
        raise ValueError(f"a limit is a whole number from 0 to {LIMIT_MAX}, not {text}")
    return int(text)


Limit = Annotated[int | None, cyclopts.Parameter(converter=_whole)]


@app.command
def create(
    name: str,
    /,
    *,
    plan: str | None = None,
    tier: int | None = None,
    rpm: Limit = None,
    tpm: Limit = None,
    max_context: Limit = None,
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
    rpm
        Requests per minute. 0 allows none; left out, the plan's limit holds, if it has one.
    tpm
        Tokens per minute, prompt and output together.
    max_context
        Tokens of prompt and output that one request may have.
    """
    if plan is not None and tier is not None:
        raise CommandError("give a plan or a tier, not both")

    async def run() -> None:
        async with database.connected() as engine:
            chosen = plan or await catalogue.plan_of_tier(engine, 1 if tier is None else tier)
            limits = Limits(rpm=rpm, tpm=tpm, max_context=max_context)
            tenant_id = await catalogue.create_tenant(engine, name, plan=chosen, limits=limits)
        print(f"tenant {name} created: {tenant_id}, plan {chosen}")

    asyncio.run(run())


@app.command(name="list")
def list_tenants(*, json: bool = False) -> None:
    """List tenants with their own limits.

    Parameters
    ----------
    json
        One JSON object a line.
    """

    async def run() -> list[TenantRow]:
        async with database.connected() as engine:
            return await catalogue.list_tenants(engine)

    rows = asyncio.run(run())
    if json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    shown_rows = table.of("tenant", "status", "plan", "tier", "rpm", "tpm", "max context", "id")
    for row in rows:
        limits = (row.limits.rpm, row.limits.tpm, row.limits.max_context)
        shown = ("-" if limit is None else f"{limit:,}" for limit in limits)
        shown_rows.add_row(row.name, row.status, row.plan, str(row.tier), *shown, str(row.id))
    table.show(shown_rows)
