"""`forebay key`: create, list and revoke. A key's text is printed once, at its making, and kept nowhere."""

import asyncio
import sys
from typing import Annotated

import cyclopts
import msgspec
from cyclopts import validators

from cli import database, table
from cli.errors import CommandError
from gateway.auth import keys
from gateway.db import catalogue
from gateway.db.catalogue import KeyRow, Limits

app = cyclopts.App(name="key", help="Create, list and revoke API keys.")

Limit = Annotated[int | None, cyclopts.Parameter(validator=validators.Number(gte=0))]


@app.command
def create(
    tenant: str,
    /,
    *,
    admin: bool = False,
    env: str = "live",
    name: str = "",
    rpm: Limit = None,
    tpm: Limit = None,
    max_context: Limit = None,
) -> None:
    """Create a key for TENANT and print it. It cannot be shown again.

    Parameters
    ----------
    tenant
        Its name.
    admin
        A key for administration, which cannot call models.
    env
        The second part of the key, 1 to 8 lower-case letters, to tell keys apart by sight.
    name
        A note on what the key is for.
    rpm
        Requests per minute with this key, besides the tenant's limit.
    tpm
        Tokens per minute with this key, besides the tenant's limit.
    max_context
        Tokens of prompt and output that one request with this key may have.
    """
    try:
        text, record = keys.generate(env)
    except ValueError as error:
        raise CommandError(str(error)) from error
    scopes = frozenset({"admin" if admin else "inference"})
    limits = Limits(rpm=rpm, tpm=tpm, max_context=max_context)

    async def run() -> None:
        async with database.connected() as engine:
            await catalogue.create_key(engine, tenant, record, scopes=scopes, name=name, limits=limits)

    asyncio.run(run())
    print(f"key {record.public_id} of {tenant}, shown this once:", file=sys.stderr)
    print(text)


@app.command(name="list")
def list_keys(tenant: str | None = None, /, *, json: bool = False) -> None:
    """List keys, of all tenants or of TENANT.

    Parameters
    ----------
    tenant
        Its name.
    json
        One JSON object a line.
    """

    async def run() -> list[KeyRow]:
        async with database.connected() as engine:
            return await catalogue.list_keys(engine, tenant)

    rows = asyncio.run(run())
    if json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
        return
    shown_rows = table.of("tenant", "public id", "key", "scopes", "created", "state", "name")
    for row in rows:
        state = f"revoked {row.revoked_at:%Y-%m-%d %H:%M}" if row.revoked_at else "active"
        shown = f"fb-{row.env}-{row.public_id}-...{row.last4}"
        shown_rows.add_row(
            row.tenant, row.public_id, shown, " ".join(row.scopes), f"{row.created_at:%Y-%m-%d %H:%M}", state, row.name
        )
    table.show(shown_rows)


@app.command
def revoke(public_id: str, /) -> None:
    """Revoke a key by its public id (the third part of its text). Gateways refuse it within a second."""

    async def run() -> None:
        async with database.connected() as engine:
            await catalogue.revoke_key(engine, public_id)

    asyncio.run(run())
    print(f"key {public_id} revoked")
