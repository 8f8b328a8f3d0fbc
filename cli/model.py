"""`forebay model`: which models there are, and who may use them."""

import uuid

import cyclopts

from cli import database, table
from gateway.db import catalogue

app = cyclopts.App(name="model", help="List models, open and close them, and grant them.")


@app.command(name="list")
def list_models(*, json: bool = False) -> None:
    """List models that workers have ever announced.

    Parameters
    ----------
    json
        One JSON object a line.
    """
    table.show_rows(
        database.run(catalogue.list_models),
        ("model", "access", "context", "id"),
        lambda row: (row.name, row.access, f"{row.context_length:,}", str(row.id)),
        json=json,
    )


@app.command(name="open")
def open_model(name: str, /) -> None:
    """Open a model to everybody."""
    database.run(lambda engine: catalogue.set_access(engine, name, "open", by=database.author()))
    print(f"model {name} is open to everybody")


@app.command
def close(name: str, /) -> None:
    """Close a model to all but those with a grant. Every gateway obeys within a second."""
    database.run(lambda engine: catalogue.set_access(engine, name, "granted", by=database.author()))
    print(f"model {name} is closed to all but those with a grant")


@app.command
def grant(name: str, /, *, plan: str | None = None, tenant: str | None = None) -> None:
    """Grant a model to a plan or a tenant.

    Parameters
    ----------
    name
        The model's.
    plan
        To all tenants of this plan.
    tenant
        To this tenant.
    """
    row = database.run(
        lambda engine: catalogue.create_grant(engine, name, plan=plan, tenant=tenant, by=database.author())
    )
    print(f"grant {row.id} of {name} made")


@app.command
def grants(name: str | None = None, /, *, json: bool = False) -> None:
    """List grants, of all models or of one.

    Parameters
    ----------
    name
        The model's.
    json
        One JSON object a line.
    """
    table.show_rows(
        database.run(lambda engine: catalogue.list_grants(engine, model=name)),
        ("model", "plan", "tenant", "id"),
        lambda row: (row.model, row.plan or "", row.tenant or "", str(row.id)),
        json=json,
    )


@app.command
def ungrant(grant_id: uuid.UUID, /) -> None:
    """Take a grant away, by its id."""
    database.run(lambda engine: catalogue.delete_grant(engine, grant_id, by=database.author()))
    print(f"grant {grant_id} taken away")
