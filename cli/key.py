"""`forebay key`: create, list, show, update, rotate and revoke. A key's text is printed once and kept nowhere."""

import sys
from datetime import datetime
from typing import Annotated, Literal

import cyclopts
from msgspec import UNSET

from cli import database, limits, table
from cli.errors import CommandError
from cli.limits import NO_OPTIONS, LimitOptions
from cli.moments import utc
from cli.whole_numbers import whole
from gateway import address, keys
from gateway.db import catalogue
from gateway.db.catalogue import KeyRow
from gateway.keys import KeyRecord

app = cyclopts.App(name="key", help="Create, list, show, change, rotate and revoke API keys.")

Seconds = Annotated[int, whole(0, 30 * 86_400)]


@app.command
def create(
    tenant: str,
    /,
    *,
    scope: Literal["inference", "admin", "admin:read"] = "inference",
    env: str = "live",
    name: str = "",
    model: list[str] | None = None,
    network: list[str] | None = None,
    expires_at: datetime | None = None,
    options: LimitOptions = NO_OPTIONS,
) -> None:
    """Create a key for TENANT and print it. It cannot be shown again. Its limits hold besides the tenant's.

    Parameters
    ----------
    tenant
        Its name.
    scope
        A key for administration cannot call models, and the other way round. `admin:read` changes nothing.
    env
        The second part of the key, 1 to 8 lower-case letters, to tell keys apart by sight.
    name
        A note on what the key is for.
    model
        Only this model, or these, if given several times.
    network
        Only from this address or network, or these, if given several times.
    expires_at
        The moment from which it is refused (ISO 8601, UTC unless it says otherwise).
    options
        Its limits.
    """
    try:
        text, record = keys.generate(env)
    except ValueError as error:
        raise CommandError(str(error)) from error
    database.run(
        lambda engine: catalogue.create_key(
            engine,
            tenant,
            record,
            scopes=(scope,),
            name=name,
            models=model,
            networks=_networks(network),
            expires_at=utc(expires_at),
            limits=options.stated(),
            by=database.author(),
        )
    )
    _print_once(text, record, tenant)


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
    _show(database.run(lambda engine: catalogue.list_keys(engine, tenant)), json=json)


@app.command
def show(public_id: str, /, *, json: bool = False) -> None:
    """Show one key, by its public id (the third part of its text).

    Parameters
    ----------
    public_id
        The third part of the key's text.
    json
        As a JSON object.
    """
    _show([database.run(lambda engine: catalogue.find_key(engine, public_id))], json=json)


@app.command
def update(
    public_id: str,
    /,
    *,
    name: str | None = None,
    model: list[str] | None = None,
    any_model: bool = False,
    network: list[str] | None = None,
    any_network: bool = False,
    expires_at: datetime | None = None,
    no_expiry: bool = False,
    options: LimitOptions = NO_OPTIONS,
) -> None:
    """Change a key. What is left out stays; every gateway obeys within a second.

    Parameters
    ----------
    public_id
        The third part of the key's text.
    name
        A note on what the key is for.
    model
        Only this model, or these, if given several times.
    any_model
        All models again that its tenant may use.
    network
        Only from this address or network, or these, if given several times.
    any_network
        From everywhere again.
    expires_at
        The moment from which it is refused (ISO 8601, UTC unless it says otherwise).
    no_expiry
        It expires no more.
    options
        Its limits.
    """
    database.run(
        lambda engine: catalogue.update_key(
            engine,
            public_id,
            name=UNSET if name is None else name,
            models=None if any_model else model or UNSET,
            networks=None if any_network else _networks(network) or UNSET,
            expires_at=None if no_expiry else utc(expires_at) or UNSET,
            limits=options.stated(),
            by=database.author(),
        )
    )
    print(f"key {public_id} changed")


@app.command
def rotate(public_id: str, /, *, overlap_s: Seconds) -> None:
    """Give a key a new secret and print it. Its public id, limits and bills stay.

    Parameters
    ----------
    public_id
        The third part of the key's text.
    overlap_s
        For how many seconds the secret before still works. 0 stops all former ones at once.
    """

    async def run(engine: database.AsyncEngine) -> tuple[str, KeyRecord, KeyRow]:
        text, record = keys.renew((await catalogue.find_key(engine, public_id)).env, public_id)
        changed = await catalogue.rotate_key(engine, record, overlap_s=overlap_s, by=database.author())
        return text, record, changed

    text, record, changed = database.run(run)
    if changed.former_until is not None:
        print(f"the former secret works until {changed.former_until:%Y-%m-%d %H:%M:%S} UTC", file=sys.stderr)
    _print_once(text, record, changed.tenant)


@app.command
def revoke(public_id: str, /) -> None:
    """Revoke a key by its public id (the third part of its text). Gateways refuse it within a second."""
    database.run(lambda engine: catalogue.revoke_key(engine, public_id, by=database.author()))
    print(f"key {public_id} revoked")


def _print_once(text: str, record: KeyRecord, tenant: str) -> None:
    print(f"key {record.public_id} of {tenant}, shown this once:", file=sys.stderr)
    print(text)


def _networks(texts: list[str] | None) -> list[str] | None:
    try:
        return None if texts is None else [str(network) for network in address.networks(",".join(texts))]
    except ValueError as error:
        raise CommandError(str(error)) from error


def _state(row: KeyRow) -> str:
    if row.revoked_at is not None:
        return f"revoked {row.revoked_at:%Y-%m-%d %H:%M}"
    return f"until {row.expires_at:%Y-%m-%d %H:%M}" if row.expires_at else "active"


def _show(rows: list[KeyRow], *, json: bool) -> None:
    table.show_rows(
        rows,
        ("tenant", "public id", "key", "scopes", "models", "networks", "own limits", "last used", "state", "name"),
        lambda row: (
            row.tenant,
            row.public_id,
            f"fb-{row.env}-{row.public_id}-...{row.last4}",
            " ".join(row.scopes),
            "all" if row.models is None else " ".join(row.models),
            "all" if row.networks is None else " ".join(row.networks),
            limits.shown(row.limits),
            str(row.last_used_on or "never"),
            _state(row),
            row.name,
        ),
        json=json,
    )
